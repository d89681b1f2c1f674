package network

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"sync"
	"time"
)

// Authority issues the certificates that a gateway presents to its sandbox for hosts with
// headers. It is for one sandbox: nothing else needs to trust it, and its key never leaves the
// gateway.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey

	mu     sync.Mutex
	leaves map[string]*tls.Certificate
}

// The validity of certificates. It is long because a sandbox may be saved and resumed much
// later.
const (
	authorityLife = 10 * 365 * 24 * time.Hour
	leafLife      = 7 * 24 * time.Hour
	leafRenewal   = 24 * time.Hour // before its end
	clockSlack    = 24 * time.Hour
)

// maxLeaves bounds the cached certificates.
const maxLeaves = 64

// NewAuthority creates an authority with a new key.
func NewAuthority() (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create an authority: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: newSerial(), Subject: pkix.Name{CommonName: "network of a sandpit sandbox"},
		NotBefore: now.Add(-clockSlack), NotAfter: now.Add(authorityLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("create an authority: %w", err)
	}
	return newAuthority(der, key)
}

func newAuthority(der []byte, key *ecdsa.PrivateKey) (*Authority, error) {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse an authority: %w", err)
	}
	return &Authority{cert: cert, key: key, leaves: make(map[string]*tls.Certificate)}, nil
}

// ParseAuthority parses the output of Encode.
func ParseAuthority(data []byte) (*Authority, error) {
	cert, rest := pem.Decode(data)
	key, _ := pem.Decode(rest)
	if cert == nil || key == nil {
		return nil, errors.New("parse an authority: certificate or key missing")
	}
	parsed, err := x509.ParseECPrivateKey(key.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse an authority: %w", err)
	}
	return newAuthority(cert.Bytes, parsed)
}

// Encode returns the authority as PEM, with its key.
func (a *Authority) Encode() ([]byte, error) {
	key, err := x509.MarshalECPrivateKey(a.key)
	if err != nil {
		return nil, fmt.Errorf("encode an authority: %w", err)
	}
	return append(a.Certificate(), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: key})...), nil
}

// Certificate returns the certificate for the sandbox to trust, as PEM.
func (a *Authority) Certificate() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// leafFor returns a cached or new certificate for a name.
func (a *Authority) leafFor(name string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if c := a.leaves[name]; c != nil && now.Before(c.Leaf.NotAfter.Add(-leafRenewal)) {
		return c, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: newSerial(), Subject: pkix.Name{CommonName: "sandpit"}, DNSNames: []string{name},
		NotBefore: now.Add(-clockSlack), NotAfter: now.Add(leafLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	if len(a.leaves) >= maxLeaves {
		clear(a.leaves)
	}
	c := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: parsed}
	a.leaves[name] = c
	return c, nil
}

// newSerial returns a unique random number.
func newSerial() *big.Int {
	var random [16]byte
	_, _ = rand.Read(random[:]) // never fails: crypto/rand ends the program instead
	return new(big.Int).SetBytes(random[:])
}
