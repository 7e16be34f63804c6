"""What is removed of operations that ended long ago: by whose policy, and how."""
