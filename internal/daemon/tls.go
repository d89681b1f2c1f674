package daemon

import (
	"cmp"
	"crypto/tls"
	"net"
	"net/netip"
	"path/filepath"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/config"
	"github.com/sandpit-dev/sandpit/internal/tlscert"
)

// AuthorityFile is where the certificate of the server's own authority is, if it has one.
func AuthorityFile(cfg config.Config) string {
	return filepath.Join(tlsDir(cfg), tlscert.AuthorityFile)
}

// ListenURL is the URL at which the server of a configuration is reached from its machine.
//
// Unsupported: it listens at no address, or at one that it finds out itself.
func ListenURL(cfg config.Config) (string, error) {
	host, port, err := net.SplitHostPort(cfg.Server.Listen)
	if err != nil || port == "0" {
		return "", sandpit.Errorf(sandpit.Unsupported, "the configuration does not tell at which address the server listens (server.listen is %s)", cfg.Server.Listen)
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "localhost"
	}
	scheme := "http"
	if tlsKind(cfg.Server) != config.TLSOff {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(host, port), nil
}

func tlsDir(cfg config.Config) string { return filepath.Join(cfg.StateDir, "tls") }

// tlsKind is where the server's certificates come from.
func tlsKind(c config.Server) string {
	usual := config.TLSOff
	if c.TLSCert != "" {
		usual = config.TLSFiles
	}
	return cmp.Or(c.TLS, usual)
}

// certificates returns those of the server, nil for none.
func (s *service) certificates() (*tls.Config, error) {
	c := s.cfg.Server
	switch tlsKind(c) {
	case config.TLSFiles:
		return tlscert.Files(c.TLSCert, c.TLSKey, s.log)
	case config.TLSLocal:
		return tlscert.Local(tlscert.LocalOptions{Dir: tlsDir(s.cfg), Names: c.Names})
	case config.TLSAuto:
		return tlscert.Automatic(tlscert.AutomaticOptions{
			Dir: filepath.Join(tlsDir(s.cfg), "acme"), Names: c.Names, Email: c.ACMEEmail, Directory: c.ACMEDirectory, CAFile: c.ACMECA, Log: s.log,
		})
	}
	return nil, nil //nolint:nilnil // none were asked for
}
