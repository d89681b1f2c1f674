// Package tlscert has the certificates of a server: given ones (Files), those of a
// throw-away authority of the server's own (Local), or those that a public authority
// gives by itself (Automatic).
//
// Every configuration speaks TLS 1.2 and later, and HTTP/2 and HTTP/1.1. None is to be
// changed by those who get it, but for being cloned.
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
