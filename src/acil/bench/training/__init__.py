"""The one back-propagation loop that base training and every method share."""
