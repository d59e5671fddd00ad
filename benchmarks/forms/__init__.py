"""What the steps of very many forms cost, random ones and ones that are made to cost."""
