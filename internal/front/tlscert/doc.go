// Package tlscert provides the certificates of a server: from files (Files), from a private
// authority of the server (Local), or from a public authority by ACME (Automatic).
//
// Every configuration speaks TLS 1.2 and later, and HTTP/2 and HTTP/1.1. Callers must
// not modify a configuration; they may clone it.
package tlscert

import (
	"crypto/tls"
	"log/slog"
)

// newConfig is what all kinds of certificates have in common.
func newConfig(get func(*tls.ClientHelloInfo) (*tls.Certificate, error)) *tls.Config {
	return &tls.Config{GetCertificate: get, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
}

func orSilent(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return log
}
