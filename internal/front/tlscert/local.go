package tlscert

import (
	"crypto/tls"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// LocalOptions say where the authority is kept and what its certificates are for.
type LocalOptions struct {
	// Dir keeps the authority. It is made if it is missing. It must be given.
	Dir string
	// Names are the host names of the server; "*.example.org" means every name below.
	// The machine's loopback addresses, localhost and names below it, the machine's own
	// name, and addresses that clients reach the server at, go without saying. Default:
	// no more.
	Names []string
}

// The files of an authority, in its directory.
const (
	// AuthorityFile has the certificate of the authority, for clients to trust.
	AuthorityFile = "ca.pem"
	// secretFile has the authority's key as well, for the server alone.
	secretFile = "authority.pem"
)

// Local returns a configuration with certificates of an authority that is created once, in
// o.Dir. A client that trusts the authority trusts every process that can read that directory,
// for any name: so install it for clients of this server only, not in a machine's store.
//
// Invalid: the directory contains an invalid or expired authority. Other errors are those of
// the file system.
func Local(o LocalOptions) (*tls.Config, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, sandpit.Errorf(sandpit.CodeOf(err), "make the directory of the authority: %w", err)
	}
	a, err := openAuthority(filepath.Join(o.Dir, secretFile))
	if err != nil {
		return nil, err
	}
	if err := replaceFile(filepath.Join(o.Dir, AuthorityFile), a.certificatePEM()); err != nil {
		return nil, sandpit.Errorf(sandpit.CodeOf(err), "write the certificate of the authority: %w", err)
	}
	l := &local{authority: a, leaves: make(map[string]*tls.Certificate), now: time.Now}
	l.names = append(l.names, "localhost", "*.localhost")
	if host, err := os.Hostname(); err == nil && isName(host) { // a machine may have none
		l.names = append(l.names, strings.ToLower(host))
	}
	for _, name := range o.Names {
		l.names = append(l.names, strings.ToLower(name))
	}
	if _, err := l.leafFor(""); err != nil {
		return nil, err
	}
	return newConfig(l.getCertificate), nil
}

// maxLeaves is how many certificates are remembered. Others are made again.
const maxLeaves = 256

// local makes certificates when they are asked for.
type local struct {
	authority *authority
	names     []string // in lower case
	now       func() time.Time

	mu     sync.Mutex
	leaves map[string]*tls.Certificate // by what they are for besides the usual
}

// getCertificate is tls.Config.GetCertificate.
func (l *local) getCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	return l.leafFor(l.extraName(hello))
}

// extraName returns the requested name if the usual certificate does not cover it: a name below
// a wildcard, because some clients refuse *.localhost, or an address of this machine. For any
// other name the client gets the usual certificate, which it will refuse.
func (l *local) extraName(hello *tls.ClientHelloInfo) string {
	name := strings.ToLower(strings.TrimSuffix(hello.ServerName, "."))
	if name == "" {
		return addressOf(hello.Conn)
	}
	for _, pattern := range l.names {
		if suffix, wild := strings.CutPrefix(pattern, "*"); wild && isName(name) && strings.HasSuffix(name, suffix) {
			return name
		}
	}
	return ""
}

// addressOf is the address that a connection came to, "" for one of the usual ones.
func addressOf(c net.Conn) string {
	if c == nil {
		return ""
	}
	at, err := netip.ParseAddrPort(c.LocalAddr().String())
	if err != nil || at.Addr().IsLoopback() {
		return ""
	}
	return at.Addr().Unmap().WithZone("").String()
}

// isName reports whether a text is a valid host name for a certificate.
func isName(name string) bool {
	if name == "" || len(name) > 253 {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || strings.ContainsFunc(label, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
		}) {
			return false
		}
	}
	return true
}

// leafFor returns the certificate for the usual names and one more, if that is not "".
func (l *local) leafFor(extra string) (*tls.Certificate, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if have := l.leaves[extra]; have != nil && now.Before(have.Leaf.NotAfter.Add(-leafLife/3)) {
		return have, nil
	}
	names := append([]string(nil), l.names...)
	addresses := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	if ip := net.ParseIP(extra); ip != nil {
		addresses = append(addresses, ip)
	} else if extra != "" {
		names = append(names, extra)
	}
	leaf, err := l.authority.issueCertificate(names, addresses, now)
	if err != nil {
		return nil, err
	}
	for other := range l.leaves {
		if len(l.leaves) < maxLeaves {
			break
		}
		delete(l.leaves, other)
	}
	l.leaves[extra] = leaf
	return leaf, nil
}
