"""What tests share and what is no test."""
