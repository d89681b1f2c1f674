package tlscert

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/acme"
	"golang.org/x/crypto/acme/autocert"

	"github.com/sandpit-dev/sandpit"
)

// AutomaticOptions name the requested certificates and their authority. Dir and Names are
// required; the zero value of another field means the default stated with it.
type AutomaticOptions struct {
	// Dir keeps the account and the certificates, in files of mode 0600. It is made if
	// it is missing.
	Dir string
	// Names are the host names of the server. No other ones get a certificate.
	Names []string
	// Email is the contact for the authority. Default: none.
	Email string
	// Directory is the URL of the authority's ACME directory. Default: that of Let's
	// Encrypt.
	Directory string
	// CAFile has certificates in PEM form one of which must have signed that of the
	// directory's own server. Default: those that the machine trusts.
	CAFile string
	// Log receives names without a certificate. Default: none.
	Log *slog.Logger
}

// Automatic returns a configuration whose certificates an authority gives by ACME
// (RFC 8555) when a name is asked for first, and again in time before they expire. The
// authority looks for the server at port 443 of each name, in the protocol of TLS itself
// (tls-alpn-01). To use it is to agree to the authority's terms of service.
//
// Invalid: no names, a wildcard name, which cannot be proved this way, or an invalid CA file.
func Automatic(o AutomaticOptions) (*tls.Config, error) {
	if len(o.Names) == 0 {
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "automatic certificates need host names, and the server has none"),
			"name them in server.names")
	}
	for _, name := range o.Names {
		if strings.HasPrefix(name, "*") {
			return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "there are no automatic certificates for all names of %s", name),
				"have one made otherwise, and give it with server.tls_cert and server.tls_key")
		}
	}
	client := &acme.Client{DirectoryURL: o.Directory, UserAgent: "sandpit", HTTPClient: &http.Client{Timeout: 30 * time.Second}}
	if o.Directory == "" {
		client.DirectoryURL = autocert.DefaultACMEDirectory
	}
	if o.CAFile != "" {
		pool, err := poolOf(o.CAFile)
		if err != nil {
			return nil, err
		}
		client.HTTPClient.Transport = &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: 30 * time.Second, ForceAttemptHTTP2: true,
		}
	}
	a := &automatic{
		names: o.Names, log: orSilent(o.Log),
		manager: &autocert.Manager{
			Prompt: autocert.AcceptTOS, Cache: autocert.DirCache(o.Dir), HostPolicy: autocert.HostWhitelist(o.Names...),
			Email: o.Email, Client: client,
		},
	}
	c := newConfig(a.getCertificate)
	c.NextProtos = append(c.NextProtos, acme.ALPNProto)
	return c, nil
}

func poolOf(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "certificates of the authority: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, sandpit.Errorf(sandpit.Invalid, "certificates of the authority: no certificate in PEM form in %s", file)
	}
	return pool, nil
}

// automatic logs failures, which autocert does not.
type automatic struct {
	names   []string
	log     *slog.Logger
	manager *autocert.Manager
}

// getCertificate is tls.Config.GetCertificate.
func (a *automatic) getCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	cert, err := a.manager.GetCertificate(hello)
	name := strings.ToLower(strings.TrimSuffix(hello.ServerName, "."))
	if err != nil && slices.Contains(a.names, name) { // others may ask for whatever they like
		a.log.WarnContext(context.Background(), "tlscert: no certificate for a server name", slog.String("name", name), slog.Any("error", err))
	}
	return cert, err
}
