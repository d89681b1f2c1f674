package data_test

import (
	"bytes"
	"io"
	"net/http"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/front/api/data"
)

// BenchmarkProxy moves a file of 64 MiB through the proxy and through the calls on
// files, in both directions. The sandbox is a fake one: the figure is the server's.
func BenchmarkProxy(b *testing.B) {
	const size = 64 << 20
	content := make([]byte, size)
	r := newRig(b, data.Options{})
	id, dir := r.box(), b.TempDir()
	for _, bc := range []struct{ name, method, target string }{
		{"ProxyIn", http.MethodPost, "/envd/files" + query("path", dir+"/f")},
		{"ProxyOut", http.MethodGet, "/envd/files" + query("path", dir+"/f")},
		{"FilesIn", http.MethodPut, "/files" + query("path", dir+"/f")},
		{"FilesOut", http.MethodGet, "/files" + query("path", dir+"/f")},
	} {
		for name, client := range map[string]*http.Client{"HTTP1": r.client, "HTTP2": r.second} {
			b.Run(bc.name+"/"+name, func(b *testing.B) {
				b.SetBytes(size)
				for b.Loop() {
					var body io.Reader
					if bc.method != http.MethodGet {
						body = bytes.NewReader(content)
					}
					res, err := client.Do(r.request(b.Context(), bc.method, id, bc.target, body))
					if err != nil {
						b.Fatal(err)
					}
					n, err := io.Copy(io.Discard, res.Body)
					_ = res.Body.Close()
					if err != nil || res.StatusCode/100 != 2 || bc.method == http.MethodGet && n != size {
						b.Fatalf("status %d, %d bytes, %v", res.StatusCode, n, err)
					}
				}
			})
		}
	}
}
