package daemon

import (
	"crypto/tls"
	"path/filepath"

	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/front/tlscert"
)

// AuthorityFile is where the certificate of the server's own authority is, if it has one.
func AuthorityFile(cfg config.Config) string {
	return filepath.Join(tlsDir(cfg), tlscert.AuthorityFile)
}

func tlsDir(cfg config.Config) string { return filepath.Join(cfg.StateDir, "tls") }

// serverCertificates returns those of the server, nil for none.
func (s *service) serverCertificates() (*tls.Config, error) {
	c := s.cfg.Server
	switch c.TLSKind() {
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
