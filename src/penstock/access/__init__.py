"""Who may do what: principals, their roles and rights."""
