"""`acil serve`: one model over HTTP, with a page that teaches it."""
