"""Settings of media by URL that contradict each other, or that nothing would look at, stop the start."""

import pytest

from configs.setting import SettingsError
from configs.settings import load_config
from tests.tables import each_of


@each_of(
    ("flags", "told"),
    [
        (["--allowed-media-domain", "https://a.example"], r"^--allowed-media-domain: 'https://a.example' is no host"),
        (["--allowed-media-domain", "a.example:8080"], "without scheme and port"),
        (["--allowed-media-domain", "*.example.com"], r"\.example\.com \(it and all below it\)"),
        (["--allowed-media-domain", "bücher.example"], "Punycode"),
        (["--allowed-media-domain", "a.example", "--allowed-media-network", "10.0.0.1/8"], "is no network"),
        (
            ["--allowed-media-domain", "a.example", "--max-inflight-mib", "255"],
            "^--max-inflight-mib: 255 MiB are less than twice the 128 MiB of --max-fetched-mib",
        ),
        (["--allowed-media-network", "10.0.0.0/8"], "^--allowed-media-network: no medium is fetched without"),
        (["--media-proxy", "http://proxy:3128"], "^--media-proxy: no medium is fetched without"),
        (["--allowed-media-domain", "a.example", "--media-proxy", "http://me:pw@proxy:3128"], "without user and"),
        (["--allowed-media-domain", "*", "--media-proxy", "http://proxy:3128"], r"^--allowed-media-domain \*: through"),
        (
            ["--allowed-media-domain", "a.example", "--media-proxy", "http://proxy:3128",
             "--allowed-media-network", "10.0.0.0/8"],
            "^--allowed-media-network: through --media-proxy",
        ),
    ],
)  # fmt: skip
def test_settings_of_media_by_url_that_cannot_be(flags: list[str], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        load_config(flags, {})
