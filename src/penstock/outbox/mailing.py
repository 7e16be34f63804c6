"""E-mail: one message for each event, by the SMTP server of the settings."""

from __future__ import annotations

import smtplib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Any
from urllib.parse import unquote, urlsplit

from penstock.outbox.wording import details, sentence

__all__ = ["Mailer"]

PORTS = {"smtp": 25, "smtps": 465, "smtp+starttls": 587}


@dataclass(frozen=True, slots=True)
class Mailer:
    """Sends e-mails; it blocks, so it is called on a thread."""

    url: str
    sender: str
    timeout_s: float

    def send(self, recipient: str, document: Mapping[str, Any]) -> None:
        """Send an event. The message's id is the event's, so mail programs can tell a repeat."""
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        message = EmailMessage()
        message["From"], message["To"] = self.sender, recipient
        message["Subject"] = f"[Penstock] {sentence(document)}"
        message["Message-ID"] = f"<{document['id']}@penstock>"
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(details(document))
        port = parts.port or PORTS[parts.scheme]
        tls = ssl.create_default_context()
        if parts.scheme == "smtps":
            client: smtplib.SMTP = smtplib.SMTP_SSL(parts.hostname, port, timeout=self.timeout_s, context=tls)
        else:
            client = smtplib.SMTP(parts.hostname, port, timeout=self.timeout_s)
        with client:
            if parts.scheme == "smtp+starttls":
                client.starttls(context=tls)
            if parts.username:
                client.login(unquote(parts.username), unquote(parts.password or ""))
            client.send_message(message)
