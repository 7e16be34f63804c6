"""How a bulk call is carried out."""
