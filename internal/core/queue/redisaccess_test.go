package queue_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
)

func TestRedisPassword(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--requirepass", password,
		"--user", "reader", "on", ">"+password, "allkeys", "-@all", "+ping", "+hello", "+auth", "+select")
	s.password = password
	dir := filepath.Join(s.dir, "s")
	escaped := "s3cret-p%C3%A4ssword"
	for name, tc := range map[string]struct {
		user string
		want sandpit.Code
	}{
		"right":        {":" + escaped + "@", ""},
		"with a name":  {"default:" + escaped + "@", ""},
		"none":         {"", sandpit.Unauthenticated},
		"wrong":        {":" + escaped + "x@", sandpit.Unauthenticated},
		"unknown user": {"nobody:" + escaped + "@", sandpit.Unauthenticated},
		"no right":     {"reader:" + escaped + "@", sandpit.PermissionDenied},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := openRedis(t, queue.RedisOptions{URL: "unix://" + tc.user + dir})
			err := q.Check(t.Context())
			if sandpit.CodeOf(err) != tc.want {
				t.Errorf("error %v with code %q, want %q", err, sandpit.CodeOf(err), tc.want)
			}
			wantNoPassword(t, err)
		})
	}
}

func wantNoPassword(t *testing.T, err error) {
	t.Helper()
	if text := fmt.Sprintf("%v %+v %#v %s", err, err, err, sandpit.HintOf(err)); strings.Contains(text, "s3cret") || strings.Contains(text, "-ssword") {
		t.Errorf("the password is in the error: %s", text)
	}
}

// TestRedisHostile connects to something that repeats all it is sent.
func TestRedisHostile(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() { l.Close(); all.Wait() })
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				buf := make([]byte, 4096)
				for {
					n, err := c.Read(buf)
					if err != nil {
						return
					}
					text := strings.NewReplacer("\r", " ", "\n", " ").Replace(string(buf[:n]))
					fmt.Fprintf(c, "-ERR what do you mean by %s\r\n", strings.Repeat(text, 20))
				}
			})
		}
	})
	q := openRedis(t, queue.RedisOptions{URL: "redis://:s3cret-p%C3%A4ssword@" + l.Addr().String()})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err = q.Check(ctx)
	if err == nil || len(err.Error()) > 2*queue.MaxError {
		t.Errorf("error %v, want a short one", err)
	}
	wantNoPassword(t, err)
}

func TestRedisOptions(t *testing.T) {
	t.Parallel()
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		options queue.RedisOptions
		want    sandpit.Code
	}{
		"good":             {queue.RedisOptions{URL: "redis://", Prefix: "a"}, ""},
		"good with TLS":    {queue.RedisOptions{URL: "rediss://user:s3cret-@h:1/15", Prefix: "A.b_c-1"}, ""},
		"nothing":          {queue.RedisOptions{}, sandpit.Invalid},
		"scheme":           {queue.RedisOptions{Prefix: "a", URL: "http://:s3cret-ssword@h"}, sandpit.Invalid},
		"slash in it":      {queue.RedisOptions{Prefix: "a", URL: "redis://:12s3cret/-ssword@h"}, sandpit.Invalid},
		"percent in it":    {queue.RedisOptions{Prefix: "a", URL: "redis://:s3cret-%ssword@h"}, sandpit.Invalid},
		"control":          {queue.RedisOptions{Prefix: "a", URL: "redis://:s3cret-ssword@h\n"}, sandpit.Invalid},
		"database":         {queue.RedisOptions{Prefix: "a", URL: "redis://:s3cret-ssword@h/x"}, sandpit.Invalid},
		"negative":         {queue.RedisOptions{Prefix: "a", URL: "redis://:s3cret-ssword@h/-1"}, sandpit.Invalid},
		"skips checks":     {queue.RedisOptions{Prefix: "a", URL: "rediss://:s3cret-ssword@h?skip_verify=true"}, sandpit.Invalid},
		"parameters":       {queue.RedisOptions{Prefix: "a", URL: "redis://:s3cret-ssword@h?max_retries=3"}, sandpit.Invalid},
		"long":             {queue.RedisOptions{Prefix: "a", URL: "redis://h/" + strings.Repeat("1", 5000)}, sandpit.Invalid},
		"no prefix":        {queue.RedisOptions{URL: "redis://h"}, sandpit.Invalid},
		"prefix":           {queue.RedisOptions{URL: "redis://h", Prefix: "a:b"}, sandpit.Invalid},
		"brace":            {queue.RedisOptions{URL: "redis://h", Prefix: "a}b"}, sandpit.Invalid},
		"CA without TLS":   {queue.RedisOptions{Prefix: "a", URL: "redis://:s3cret-ssword@h", CAFile: text}, sandpit.Invalid},
		"invalid CA":       {queue.RedisOptions{Prefix: "a", URL: "rediss://:s3cret-ssword@h", CAFile: text}, sandpit.Invalid},
		"CA that is not":   {queue.RedisOptions{Prefix: "a", URL: "rediss://:s3cret-ssword@h", CAFile: text + "x"}, sandpit.NotFound},
		"socket, no path":  {queue.RedisOptions{Prefix: "a", URL: "unix://:s3cret-ssword@"}, sandpit.Invalid},
		"socket, database": {queue.RedisOptions{Prefix: "a", URL: "unix:///s?db=x"}, sandpit.Invalid},
	} {
		q, err := queue.NewRedis(tc.options)
		if sandpit.CodeOf(err) != tc.want {
			t.Errorf("%s: error %v with code %q, want %q", name, err, sandpit.CodeOf(err), tc.want)
		}
		wantNoPassword(t, err)
		if err == nil {
			q.Close()
		}
	}
}

func TestRedisTLS(t *testing.T) {
	t.Parallel()
	certs := makeCerts(t)
	port := freePort(t)
	startServer(t, "--tls-port", port, "--tls-cert-file", certs.cert, "--tls-key-file", certs.key,
		"--tls-ca-cert-file", certs.ca, "--tls-auth-clients", "no", "--requirepass", password)
	url := "rediss://:s3cret-p%C3%A4ssword@127.0.0.1:" + port
	for name, tc := range map[string]struct {
		options queue.RedisOptions
		want    sandpit.Code
	}{
		"right":       {queue.RedisOptions{URL: url, CAFile: certs.ca}, ""},
		"other name":  {queue.RedisOptions{URL: strings.Replace(url, "127.0.0.1", "localhost", 1), CAFile: certs.ca}, sandpit.Unauthenticated},
		"machine's":   {queue.RedisOptions{URL: url}, sandpit.Unauthenticated},
		"another's":   {queue.RedisOptions{URL: url, CAFile: makeCerts(t).ca}, sandpit.Unauthenticated},
		"without TLS": {queue.RedisOptions{URL: strings.Replace(url, "rediss", "redis", 1)}, sandpit.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := openRedis(t, tc.options)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			err := q.Check(ctx)
			if sandpit.CodeOf(err) != tc.want {
				t.Errorf("error %v with code %q, want %q", err, sandpit.CodeOf(err), tc.want)
			}
			wantNoPassword(t, err)
			if tc.want == "" {
				later(t, q, 0)
				wantStats(t, q, queue.Stats{Pending: 1})
			}
		})
	}
}

type certFiles struct{ ca, cert, key string }

// makeCerts makes an authority, and a certificate of it for 127.0.0.1.
func makeCerts(t *testing.T) certFiles {
	t.Helper()
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	key := func() (*ecdsa.PrivateKey, []byte) {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.MarshalPKCS8PrivateKey(k)
		if err != nil {
			t.Fatal(err)
		}
		return k, der
	}
	caKey, _ := key()
	leafKey, leafDER := key()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "redis"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	sign := func(c *x509.Certificate, k *ecdsa.PrivateKey) []byte {
		der, err := x509.CreateCertificate(rand.Reader, c, ca, &k.PublicKey, caKey)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	return certFiles{
		ca:   write("ca.pem", "CERTIFICATE", sign(ca, caKey)),
		cert: write("cert.pem", "CERTIFICATE", sign(leaf, leafKey)),
		key:  write("key.pem", "PRIVATE KEY", leafDER),
	}
}
