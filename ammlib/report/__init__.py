"""Tables, claims and figures from what is stored; only `notebook` trains."""
