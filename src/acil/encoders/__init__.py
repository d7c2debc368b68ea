"""Files to features: images, and tables of features that any network made."""
