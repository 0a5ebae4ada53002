"""The method: margins of any PyTorch classifier, and a regulariser that enlarges them; needs torch and tqdm alone."""
