package policy_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network/policy"
)

func header(host, name, value string) sandpit.NetworkHeader {
	return sandpit.NetworkHeader{Host: host, Name: name, Value: value}
}

// TestBadHeaders refuses what cannot be set, or must not be, without quoting values.
func TestBadHeaders(t *testing.T) {
	t.Parallel()
	const good = "Bearer ${TOKEN}"
	for _, h := range []sandpit.NetworkHeader{
		header("", "A", good), header("*.example.org", "A", good), header("10.0.0.1", "A", good), header("[::1]:443", "A", good),
		header("10.0.0.0/8", "A", good), header("a.example:0", "A", good), header("a.example:80", "A", good), header("http://a.example", "A", good),
		header("a.example", "", good), header("a.example", "a b", good), header("a.example", "a:", good), header("a.example", "Host", good),
		header("a.example", "cOnnection", good), header("a.example", "Content-Length", good), header("a.example", "Transfer-Encoding", good),
		header("a.example", strings.Repeat("a", 100), good),
		header("a.example", "A", ""), header("a.example", "A", "hunter2"), header("a.example", "A", "${}"), header("a.example", "A", "${1}"),
		header("a.example", "A", "hunter2 ${TOKEN}\r\nX: y"), header("a.example", "A", "hunter2 ${TOKEN}\x00"),
		header("a.example", "A", "hunter2"+strings.Repeat("x", 2000)+good),
	} {
		_, err := policy.Parse(sandpit.NetworkPolicy{Online: true, Headers: []sandpit.NetworkHeader{h}})
		if sandpit.CodeOf(err) != sandpit.Invalid {
			t.Errorf("%q: %v, want invalid", h, err)
		} else if strings.Contains(err.Error()+sandpit.HintOf(err), "hunter2") {
			t.Errorf("the error quotes the value: %v", err)
		}
	}
	for name, list := range map[string][]sandpit.NetworkHeader{
		"twice": {header("a.example", "A", good), header("A.example.:443", "a", good)},
		"many":  slices.Repeat([]sandpit.NetworkHeader{header("a.example", "A", good)}, 65),
	} {
		if _, err := policy.Parse(sandpit.NetworkPolicy{Online: true, Headers: list}); sandpit.CodeOf(err) != sandpit.Invalid {
			t.Errorf("%s: %v, want invalid", name, err)
		}
	}
	for _, p := range []sandpit.NetworkPolicy{
		{Headers: []sandpit.NetworkHeader{header("a.example", "A", good)}}, {Limits: sandpit.NetworkLimits{Send: 1 << 20}},
	} {
		if _, err := policy.Parse(p); sandpit.CodeOf(err) != sandpit.Invalid {
			t.Errorf("offline: %v, want invalid", err)
		}
	}
}

func TestBadLimits(t *testing.T) {
	t.Parallel()
	for _, l := range []sandpit.NetworkLimits{
		{Receive: -1}, {Receive: 1}, {Send: 1023}, {Send: 1 << 50}, {Connections: -1}, {Connections: 1 << 30}, {ConnectionRate: -1}, {ConnectionRate: 1 << 30},
	} {
		if _, err := policy.Parse(sandpit.NetworkPolicy{Online: true, Limits: l}); sandpit.CodeOf(err) != sandpit.Invalid {
			t.Errorf("%+v: %v, want invalid", l, err)
		}
	}
}

func TestFill(t *testing.T) {
	t.Parallel()
	r := parse(t, sandpit.NetworkPolicy{Headers: []sandpit.NetworkHeader{
		header("API.example:8443", "Authorization", "${USER}:${PASS_1} $x ${USER}"), header("api.example", "X", "${A}"),
	}})
	found := r.HeadersFor("api.example", 8443)
	if len(found) != 1 || len(r.HeadersFor("api.example", 443)) != 1 || len(r.HeadersFor("api.example", 80)) != 0 || len(r.HeadersFor("x.api.example", 443)) != 0 {
		t.Fatalf("found %+v", found)
	}
	// What a secret holds is not looked at again.
	value, missing := found[0].Fill(map[string]string{"USER": "${PASS_1}", "PASS_1": "b$1"})
	if value != "${PASS_1}:b$1 $x ${PASS_1}" || missing != "" {
		t.Errorf("%q, missing %q", value, missing)
	}
	if _, missing := found[0].Fill(map[string]string{"USER": "a"}); missing != "PASS_1" {
		t.Errorf("missing %q", missing)
	}
	for name, value := range map[string]string{"": "x", "1": "x", "a b": "x", "a": "x\ny", "b": strings.Repeat("x", 17<<10)} {
		if err := policy.CheckSecret(name, value); sandpit.CodeOf(err) != sandpit.Invalid || strings.Contains(err.Error(), "x\ny") {
			t.Errorf("secret %q: %v", name, err)
		}
	}
}

// FuzzHeader looks for headers that are accepted and would break the request they are
// set in, and for targets that are neither refused nor whole.
func FuzzHeader(f *testing.F) {
	f.Add("api.example", "Authorization", "Bearer ${T}", "api.example:443")
	f.Add("a:1", "x", "${a}\r\n", "[::1]:1")
	f.Fuzz(func(t *testing.T, host, name, value, target string) {
		r, err := policy.Parse(sandpit.NetworkPolicy{Online: true, Headers: []sandpit.NetworkHeader{{Host: host, Name: name, Value: value}}})
		if err == nil {
			if strings.ContainsAny(name+value, "\r\n\x00") || strings.EqualFold(name, "host") {
				t.Errorf("header %q: %q is accepted", name, value)
			}
			if r.Limits() != (sandpit.NetworkLimits{}) {
				t.Error("limits from nowhere")
			}
		}
		named, addr, port, err := policy.SplitTarget(target)
		if err == nil && ((named == "") == !addr.IsValid() || port == 0) {
			t.Errorf("target %q: %q %v %d", target, named, addr, port)
		}
	})
}
