package tlscert

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"net"
	"os"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/atomicfile"
)

const (
	authorityLife = 10 * 365 * 24 * time.Hour
	leafLife      = 30 * 24 * time.Hour
	// clockSkew is how far the clock of a client may be behind.
	clockSkew = time.Hour
)

// authority signs certificates of servers.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// openAuthority reads an authority and creates it if it is missing.
func openAuthority(file string) (*authority, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		if text, err = newAuthority(time.Now()); err == nil {
			err = replaceFile(file, text)
		}
	}
	if err != nil {
		return nil, sandpit.Errorf(sandpit.CodeOf(err), "open the authority of the server: %w", err)
	}
	pair, err := tls.X509KeyPair(text, text)
	if err != nil {
		return nil, badAuthority(file, "cannot be read")
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	switch {
	case !ok || pair.Leaf == nil || !pair.Leaf.IsCA:
		return nil, badAuthority(file, "is not a certificate authority")
	case time.Now().After(pair.Leaf.NotAfter.Add(-leafLife)):
		return nil, badAuthority(file, "has expired")
	}
	return &authority{cert: pair.Leaf, key: key}, nil
}

func badAuthority(file, what string) error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "the authority of the server, %s, %s", file, what),
		"remove the file to have another one made, whose certificate clients then need")
}

// newAuthority returns an authority with its key, in PEM form.
func newAuthority(now time.Time) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial := newSerial()
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "sandpit authority " + hex.EncodeToString(serial.Bytes()[:4])},
		NotBefore:    now.Add(-clockSkew), NotAfter: now.Add(authorityLife),
		KeyUsage: x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return append(pemOf("CERTIFICATE", cert), pemOf("PRIVATE KEY", secret)...), nil
}

// newSerial returns a unique number.
func newSerial() *big.Int {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails: crypto/rand ends the program instead
	raw[0] = raw[0]&0x3f | 0x40
	return new(big.Int).SetBytes(raw[:])
}

func pemOf(kind string, raw []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw})
}

// certificatePEM is the certificate without the key.
func (a *authority) certificatePEM() []byte { return pemOf("CERTIFICATE", a.cert.Raw) }

// issueCertificate makes the certificate of a server.
func (a *authority) issueCertificate(names []string, addresses []net.IP, now time.Time) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Internal, "make a certificate: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: newSerial(), Subject: pkix.Name{CommonName: "sandpit"},
		NotBefore: now.Add(-clockSkew), NotAfter: now.Add(leafLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, DNSNames: names, IPAddresses: addresses,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Internal, "make a certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(raw)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Internal, "make a certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{raw, a.cert.Raw}, PrivateKey: key, Leaf: leaf}, nil
}

// replaceFile writes a file for its owner only, whole or not at all.
func replaceFile(name string, content []byte) error {
	if have, err := os.ReadFile(name); err == nil && bytes.Equal(have, content) {
		return nil
	}
	return atomicfile.Write(name, 0o600, content)
}
