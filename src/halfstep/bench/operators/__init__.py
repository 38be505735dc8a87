"""`halfstep bench operators`: measures the operators of common models on the device that is here.

`commonest.json` lists the operators, `spec.py` describes a call of one as plain data and makes it
again, `timing.py` measures a call, and `measuring.py` writes the file that predictions read
(`advise/predict/measured.py`).
"""
