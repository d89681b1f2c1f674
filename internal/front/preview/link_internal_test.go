package preview

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// newLinkView returns a view by path of a server at 127.0.0.1:8091, and at a name.
func newLinkView(tb testing.TB) view {
	tb.Helper()
	to := target{id: fuzzID, port: 8000, mode: byPath, prefix: "/p/" + string(fuzzID) + "/8000"}
	ctx := context.WithValue(tb.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 8091})
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:8091"+to.prefix+"/dir/page?q=1&sandpit_token=spv_x", nil)
	return view{request: r, target: to, places: Places{Paths: "http://previews.lan:8091"}}
}

// TestOuterLink keeps every link that is of the server's own below the preview, in all the
// ways in which browsers could be led elsewhere.
func TestOuterLink(t *testing.T) {
	t.Parallel()
	v := newLinkView(t)
	const other = "/p/sbbbbbbbbbbbbbbbbbbb/8000/"
	own := v.target.prefix
	for link, want := range map[string]string{
		// Of the program.
		"/x": "/x", "x": "/dir/x", "./x": "/dir/x", "../x": "/x", "?a": "/dir/page?a", "#f": "/dir/page?q=1#f", "": "/dir/page?q=1", "/a%2Fb": "/a%2Fb",
		"/x?to=/../y#/../z": "/x?to=/../y#/../z", own + "/x": "/x", own: "/", own + "?a": "/?a", "http://127.0.0.1:8091" + own + "/x": "/x",
		"http://localhost:8000/x": "/x", "//127.0.0.1:8000/x": "/x", "/x y": "/x%20y", "/ü": "/%C3%BC",
		// To another preview, by dots.
		"../../../../.." + other: other, "/.." + other: other, own + "/../.." + other: "/p" + other, own + "/../../../.." + other: other,
		own + "/%2e%2e/%2E%2e/.%2e/%2e./" + other[1:]: other, "%2e%2e/..%2f../x": "/..%2f../x", own + "/..%2f..%2f..%2f" + other[1:]: "/..%2f..%2f..%2f" + other[1:],
		own + "/..\\..\\..\\..\\p\\sbbbbbbbbbbbbbbbbbbb\\8000\\": other, "\\p\\sbbbbbbbbbbbbbbbbbbb\\8000\\": other, ".." + "\\../../../.." + other: other,
		"/\t../p": "/p", "/.\t./.\t./.\t./p": "/p", " \x01/x\x1f ": "/x", "/x/%2e%2e%2f/y": "/x/%2e%2e%2f/y",
		// By the server's own address, however it is written.
		"http://127.0.0.1:8091" + other: other, "//127.0.0.1:8091" + other: other, "http://127.1:8091" + other: other, "http://2130706433:8091" + other: other,
		"http://0x7f000001:8091" + other: other, "http://0177.0.0.1:8091" + other: other, "http://0x7f.1:8091" + other: other, "http://127.0.0.1.:8091" + other: other,
		"http://127.0.0.1:008091" + other: other, "http://user:pass@127.0.0.1:8091" + other: other, "http://evil.example@127.1:8091" + other: other,
		"http://localhost:8091" + other: other, "http://LOCALHOST.:8091" + other: other, "http://x.localhost:8091" + other: other, "http://[::1]:8091" + other: other,
		"http://[0:0:0:0:0:0:0:1]:8091" + other: other, "http://[::ffff:127.0.0.1]:8091" + other: other, "http://[::ffff:7f00:1]:8091" + other: other,
		"http://0.0.0.0:8091" + other: other, "http://0:8091" + other: other, "http://0x:8091" + other: other, "http://192.0.2.2:8091" + other: other, "http://3221225986:8091" + other: other,
		"http://previews.lan:8091" + other: other, "https://PREVIEWS.lan:8091" + other: other, "HTTP://127.0.0.1:8091" + other: other, "http://１２７.0.0.1:8091" + other: other,
		"http://127。0。0。1:8091" + other: other, "http://ｌocalhost:8091" + other: other, "http://127.0.0.1:8091\\p\\sbbbbbbbbbbbbbbbbbbb\\8000\\": other,
		"http://127.0.0.1:8091\\@evil.example/": "/@evil.example/", "\\\\127.0.0.1:8091" + other: other, "/\\127.0.0.1:8091" + other: other,
		"h\nttp://127.0.0.1:8091" + other: other,
	} {
		if got, ok := v.outerLink(link); !ok || got != own+want {
			t.Errorf("%q leads to %q, %v; want %q", link, got, ok, own+want)
		}
	}
	for _, link := range []string{ // to other sites, as they are
		"http://example.org/x", "https://example.org:8091/p/x", "//example.org/x", "http://127.0.0.1:8090/", "http://127.0.0.1/", "http://192.0.2.3:8091/",
		"http://bücher.example/", "http://[2001:db8::1]:8091/", "mailto:a@b", "vscode://x", "data:text/html,x", "http://my_host.lan/",
	} {
		if got, ok := v.outerLink(link); !ok || got != link {
			t.Errorf("%q leads to %q, %v; want it as it is", link, got, ok)
		}
	}
	for _, link := range []string{ // that are read in more than one way
		"http:/127.0.0.1:8091/", "http:127.0.0.1:8091/", "http:" + other, "http:///127.0.0.1:8091/", "///127.0.0.1:8091/", "https:\\/127.0.0.1", "http:\\\\127.0.0.1",
		"http://%31%32%37.0.0.1:8091/", "http://127.0.0.1:8091x/", "http://127.0.0.1:99999/", "http://[::1/", "http://[::1%25lo]/", "http://1.2.3.4.5/", "http:///",
		"http://256.1.1.1/", "http://a b/", "http://4294967296/", "//", "http://:8091/", "http://127.0.0.1:-1/",
	} {
		if got, ok := v.outerLink(link); ok && !strings.HasPrefix(got, own+"/") {
			t.Errorf("%q leads to %q, want it refused", link, got)
		}
	}
}

// TestOuterRefresh does so for the header that has a browser load something later.
func TestOuterRefresh(t *testing.T) {
	t.Parallel()
	v := newLinkView(t)
	for text, want := range map[string]string{
		"5": "5", " 0 ; url = ../../x": "0;url=" + v.target.prefix + "/x", "0, /x": "0;url=" + v.target.prefix + "/x", "0;URL='../../../p/x'": "0;url=" + v.target.prefix + "/p/x",
		`0; url="http://127.1:8091/p/x"y`: "0;url=" + v.target.prefix + "/p/x", "1.5 /x": "1.5;url=" + v.target.prefix + "/x", "0;https://example.org/": "0;url=https://example.org/",
		"0;\turl=/x": "0;url=" + v.target.prefix + "/x",
	} {
		if got, ok := v.outerRefresh(text); !ok || got != want {
			t.Errorf("%q is %q, %v; want %q", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "x", "0; url=http:/x", "-1;url=/x"} {
		if got, ok := v.outerRefresh(text); ok {
			t.Errorf("%q is %q, want it refused", text, got)
		}
	}
}

// FuzzOuterLink looks for a link that leaves the preview. What is left of one must be read
// alike by net/url and by browsers, as far as that can be told here.
func FuzzOuterLink(f *testing.F) {
	for _, seed := range []string{
		"../../x", "/..%2e/x", "//127.1:8091/p/x", "http:\\\\localhost:8091", "\t//x", "http://u@0x7f.1:8091/..", "?a#b", "http://１２７.1:8091/", "..\\..\\x",
	} {
		f.Add(seed)
	}
	v := newLinkView(f)
	f.Fuzz(func(t *testing.T, text string) {
		got, ok := v.outerLink(text)
		if !ok {
			return
		}
		if strings.HasPrefix(got, "/") && !strings.HasPrefix(got, "//") && !strings.HasPrefix(got, "/\\") {
			path, _ := splitRest(got)
			if !strings.HasPrefix(path, v.target.prefix+"/") || strings.ContainsAny(path, "\\\t\r\n") {
				t.Fatalf("%q leads to %q", text, got)
			}
			for segment := range strings.SplitSeq(path, "/") {
				if plain := strings.ReplaceAll(strings.ToLower(segment), "%2e", "."); plain == "." || plain == ".." {
					t.Fatalf("%q leads to %q", text, got)
				}
			}
			return
		}
		u, err := url.Parse(strings.ReplaceAll(got, "\\", "/"))
		if err != nil || u.Host == "" || u.Scheme != "" && !strings.EqualFold(u.Scheme, "http") && !strings.EqualFold(u.Scheme, "https") {
			return // of another scheme, or one that only browsers understand
		}
		if name := strings.ToLower(u.Hostname()); u.Port() == "8091" && (name == "127.0.0.1" || name == "localhost" || name == "previews.lan") {
			t.Fatalf("%q leads to %q", text, got)
		}
	})
}
