// Command acme is an ACME server for tests: Let's Encrypt's Pebble on a loopback address. It resolves
// all names to this machine. It is a separate module, so that no other package has its dependencies.
//
// It prints its address as one line of JSON, and ends when its standard input does.
package main

import (
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http/httptest"
	"os"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/miekg/dns"
)

func main() {
	port := flag.Int("tls-port", 443, "where names are looked for")
	flag.Parse()
	if err := run(*port); err != nil {
		fmt.Fprintln(os.Stderr, "acme:", err)
		os.Exit(1)
	}
}

// place is the address of the server and the certificates to trust.
type place struct {
	Directory string `json:"directory"`
	CA        string `json:"ca"`   // of the directory
	Root      string `json:"root"` // of the certificates that it issues
}

func run(port int) error {
	if err := os.Setenv("PEBBLE_VA_NOSLEEP", "1"); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	names := &dns.Server{Listener: l, Handler: dns.HandlerFunc(resolve)}
	go func() { log.Print(names.ActivateAndServe()) }()
	defer l.Close()
	logger := log.New(os.Stderr, "", log.LstdFlags)
	store := db.NewMemoryStore()
	authority := ca.New(logger, store, "", "ecdsa", 0, 1, map[string]ca.Profile{"default": {Description: "usual", ValidityPeriod: 90 * 24 * 3600}})
	checks := va.New(logger, 80, port, true, l.Addr().String(), store)
	front := wfe.New(logger, store, checks, authority, []string{"acme.test"}, true, false, 1, 1)
	server := httptest.NewTLSServer(front.Handler())
	defer server.Close()
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	where := place{Directory: server.URL + wfe.DirectoryPath, CA: string(text), Root: string(authority.GetRootCert(0).PEM())}
	if err := json.NewEncoder(os.Stdout).Encode(where); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// resolve answers every name with the address of this machine.
func resolve(w dns.ResponseWriter, question *dns.Msg) {
	answer := new(dns.Msg)
	answer.SetReply(question)
	for _, q := range question.Question {
		if q.Qtype == dns.TypeA {
			answer.Answer = append(answer.Answer, &dns.A{
				Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: net.IPv4(127, 0, 0, 1),
			})
		}
	}
	_ = w.WriteMsg(answer) // the client retries
}
