"""``layout: ensemble``: tokenizer, model and postprocessing as models of their own."""
