package api_test

import (
	"testing"

	"github.com/sandpit-dev/sandpit/internal/front/api"
)

func TestRedactor(t *testing.T) {
	t.Parallel()
	r := api.NewRedactor("/var/lib/sandpit/", "/run/sandpit", "/tmp", "")
	for text, want := range map[string]string{
		"mkdir /var/lib/sandpit/scratch/a: no such file":            "mkdir (server): no such file",
		`open "/var/lib/sandpit": denied`:                           `open "(server)": denied`,
		"open /var/lib/sandpit-other/x: denied":                     "open /var/lib/sandpit-other/x: denied",
		"open /tmp/x: no such file":                                 "open /tmp/x: no such file", // sandboxes have it, too
		"dial unix /home/u/run/e.sock: connect: connection refused": "network: connect: connection refused",
		"dial tcp 10.1.2.3:443: i/o timeout":                        "network: i/o timeout",
		"read udp 10.0.0.9:1234->10.0.0.2:53: i/o timeout":          "network: i/o timeout",
		"dial tcp: lookup x.example on 127.0.0.53:53: no such host": "network: lookup x.example: no such host",
		"read tcp [::1]:4->[fd00::1]:5: connection reset":           "network: connection reset",
		"the file /etc/passwd is not yours to write":                "the file /etc/passwd is not yours to write",
		"stat /run/sandpit/a and /run/sandpit/b c":                  "stat (server) and (server) c",
	} {
		if got := r.Text(text); got != want {
			t.Errorf("%s\n got %s\nwant %s", text, got, want)
		}
	}
}
