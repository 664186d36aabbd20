"""How every TLS client verifies a server: a certificate that Go's NSQ accepts is accepted here.

Python 3.13 verifies strictly by default (`VERIFY_X509_STRICT`): it refuses certificates without an
Authority Key Identifier, which private authorities often issue, and which Go and earlier Pythons
accept. Python before 3.13 refuses an intermediate authority as the end of a chain, which Go and
Python 3.13 accept (`VERIFY_X509_PARTIAL_CHAIN`). Names, dates and signatures are always verified.
"""

import ssl


def verifying_context(ca_file: str = "") -> ssl.SSLContext:
    """For a client. `ca_file` has the authorities; without it they are the system's. Raises OSError
    or ssl.SSLError if the file cannot be used."""
    context = ssl.create_default_context(cafile=ca_file or None)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
