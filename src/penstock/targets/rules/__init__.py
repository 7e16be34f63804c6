"""What the executor decides: pure rules, without clock, network or database."""
