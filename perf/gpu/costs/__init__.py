"""What a GPU should do by counted work, where nothing is measured: a model of costs."""
