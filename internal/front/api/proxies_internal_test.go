package api

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
)

func testProxies() Proxies {
	return Proxies{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
}

func TestClientOf(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		from    string
		headers []string
		want    string
	}{
		"no proxy":                {"192.0.2.1", []string{"203.0.113.9"}, "192.0.2.1"},
		"no header":               {"10.1.1.1", nil, "10.1.1.1"},
		"client":                  {"10.1.1.1", []string{"203.0.113.9"}, "203.0.113.9"},
		"claimed by client":       {"10.1.1.1", []string{"8.8.8.8, 203.0.113.9"}, "203.0.113.9"},
		"two proxies":             {"10.1.1.1", []string{"203.0.113.9, 10.2.2.2"}, "203.0.113.9"},
		"two headers":             {"10.1.1.1", []string{"8.8.8.8", "203.0.113.9,10.2.2.2"}, "203.0.113.9"},
		"with a port":             {"10.1.1.1", []string{"203.0.113.9:4711"}, "203.0.113.9"},
		"version 6":               {"fd00::1", []string{"[2001:db8::5]:80"}, "2001:db8::5"},
		"version 6, bare":         {"fd00::1", []string{"2001:db8::5"}, "2001:db8::5"},
		"mapped":                  {"10.1.1.1", []string{"::ffff:203.0.113.9"}, "203.0.113.9"},
		"garbage":                 {"10.1.1.1", []string{"unknown"}, "10.1.1.1"},
		"garbage before it":       {"10.1.1.1", []string{"8.8.8.8, unknown, 10.2.2.2"}, "10.2.2.2"},
		"a proxy asks for itself": {"10.1.1.1", []string{"10.2.2.2"}, "10.2.2.2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := http.Header{"X-Forwarded-For": tc.headers}
			if got := testProxies().clientOf(netip.MustParseAddr(tc.from), h); got.String() != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

// FuzzForwardedFor has a client write whatever it likes before what the proxy adds.
func FuzzForwardedFor(f *testing.F) {
	f.Add("8.8.8.8")
	f.Add("[::1]:5,,unknown;for=x")
	f.Fuzz(func(t *testing.T, claimed string) {
		if strings.ContainsAny(claimed, "\r\n") {
			return
		}
		h := http.Header{"X-Forwarded-For": {claimed + ", 203.0.113.9"}}
		if got := testProxies().clientOf(netip.MustParseAddr("10.1.1.1"), h); got.String() != "203.0.113.9" {
			t.Errorf("%q: got %s", claimed, got)
		}
		testProxies().clientOf(netip.MustParseAddr("10.1.1.1"), http.Header{"X-Forwarded-For": {claimed}})
	})
}
