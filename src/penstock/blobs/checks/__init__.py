"""What uploaded bytes are checked for before anybody may use them."""
