"""Names of TLS versions and cipher suites, as /stats shows them."""

import pytest

from pumpline.nsqd.security.tls import go_cipher_name, go_version_name


@pytest.mark.parametrize(
    ("openssl", "shown"),
    [
        ("TLS_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"),
        ("ECDHE-ECDSA-AES128-GCM-SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"),
        ("ECDHE-RSA-AES256-GCM-SHA384", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"),
        ("ECDHE-RSA-AES256-SHA", "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA"),
        ("ECDHE-ECDSA-AES128-SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256"),
        ("ECDHE-RSA-CHACHA20-POLY1305", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"),
        ("AES128-SHA", "TLS_RSA_WITH_AES_128_CBC_SHA"),
        ("SOMETHING-ELSE", "SOMETHING-ELSE"),
        ("", ""),
    ],
)
def test_cipher_suites(openssl: str, shown: str) -> None:
    assert go_cipher_name(openssl) == shown


@pytest.mark.parametrize(
    ("openssl", "shown"),
    [("TLSv1", "TLS1.0"), ("TLSv1.1", "TLS1.1"), ("TLSv1.2", "TLS1.2"), ("TLSv1.3", "TLS1.3")],
)
def test_versions(openssl: str, shown: str) -> None:
    assert go_version_name(openssl) == shown
