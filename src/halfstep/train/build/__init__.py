"""What a config names, built: model, optimizer, schedule, and the engine over them."""
