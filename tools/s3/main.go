// Command s3 is an S3-compatible store for tests: Versity's gateway over a directory, with TLS, on a
// loopback address. It is a separate module, so that no other package has its dependencies.
//
// It prints its address as one line of JSON, and ends when its standard input does.
package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"path/filepath"

	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/s3api"
	"github.com/versity/versitygw/s3api/middlewares"
)

func main() {
	dir := flag.String("dir", "", "directory of the buckets")
	flag.Parse()
	if err := run(*dir); err != nil {
		fmt.Fprintln(os.Stderr, "s3:", err)
		os.Exit(1)
	}
}

// endpoint is the address of the store, the certificate to trust, and the credentials.
type endpoint struct {
	URL    string `json:"url"`
	CA     string `json:"ca"`
	Access string `json:"access"`
	Secret string `json:"secret"`
}

func run(dir string) error {
	out := os.Stdout
	os.Stdout = os.Stderr // the library prints to it
	printed := endpoint{Access: "tester", Secret: "a-secret-of-the-tests"}
	metadataDir := filepath.Join(dir, "meta")
	buckets := filepath.Join(dir, "buckets")
	for _, d := range []string{metadataDir, filepath.Join(buckets, "boxes")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	metadata, err := meta.NewSideCar(metadataDir)
	if err != nil {
		return err
	}
	store, err := posix.New(buckets, metadata, posix.PosixOpts{SideCarDir: metadataDir})
	if err != nil {
		return err
	}
	root := auth.Account{Access: printed.Access, Secret: printed.Secret, Role: auth.RoleAdmin}
	users, err := auth.New(&auth.Opts{RootAccount: root})
	if err != nil {
		return err
	}
	socket := filepath.Join(dir, "socket")
	listening := make(chan struct{})
	gateway, err := s3api.New(store, middlewares.RootUserConfig{Access: printed.Access, Secret: printed.Secret}, "us-east-1",
		users, nil, nil, nil, nil, s3api.WithQuiet(), s3api.WithConcurrencyLimiter(1000, 1000), s3api.WithOnListen(func() { close(listening) }))
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() { failed <- gateway.ServeMultiPort([]string{socket}) }()
	select {
	case <-listening:
	case err := <-failed:
		return err
	}
	front := httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", "gateway"
			r.Out.Host = r.In.Host // the signature covers it
		},
		Transport: &http.Transport{
			DisableCompression: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", socket)
			},
		},
	})
	front.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	front.StartTLS()
	defer front.Close()
	printed.URL = front.URL
	printed.CA = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: front.Certificate().Raw}))
	if err := json.NewEncoder(out).Encode(printed); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
