"""Who may do what: API keys, tokens, sessions, roles, tenants, and the audit log of what was done."""
