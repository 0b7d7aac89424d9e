"""Small defects in the relay, one at a time: which ones do the tests notice? (decision 0049)"""
