package daytona

import (
	"cmp"
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// The times that a signed URL of a port is good for, in seconds.
const (
	defaultSigned = 60
	maxSigned     = 86400
)

// Previews give access to ports of sandboxes. All methods may be called concurrently, with the
// context of a request whose client must own the sandbox.
type Previews interface {
	// TokenURL returns the URL of a port, and a token that opens it and the sandbox's other
	// ports. That of port 1 opens the toolbox API.
	TokenURL(ctx context.Context, id sandpit.ID, port int) (wire.PreviewURL, error)
	// SignedURL returns a URL that opens a port by itself, and its token.
	SignedURL(ctx context.Context, id sandpit.ID, port int, life time.Duration) (wire.PreviewURL, error)
	// ExpireSignedURL revokes the token of such a URL. NotFound: the port has no such URL.
	ExpireSignedURL(ctx context.Context, id sandpit.ID, port int, token string) error
	// SigningKey returns the secret with which the client signs URLs of files, after it has
	// renewed it if that is wanted.
	SigningKey(ctx context.Context, id sandpit.ID, renew bool) (string, error)
}

// portHandlers serve the ports of sandboxes.
type portHandlers struct {
	manager  *manager.Manager
	previews Previews
}

// portPreview is how a port is reached.
type portPreview struct {
	Sandbox sandpit.ID `json:"sandboxId"`
	URL     string     `json:"url"`
	Token   string     `json:"token"`
}

// signedPreview is a URL of a port that opens it by itself.
type signedPreview struct {
	portPreview

	Port int `json:"port"`
}

// findPort returns the sandbox and port in the path.
func (h *portHandlers) findPort(c *call) (sandpit.Sandbox, int, error) {
	b, err := findSandbox(c, h.manager)
	if err != nil {
		return b, 0, err
	}
	port, err := strconv.Atoi(c.r.PathValue("port"))
	if err != nil || port < 1 || port > 65535 {
		return b, 0, sandpit.Errorf(sandpit.Invalid, "Invalid port %.40q: want 1 to 65535", c.r.PathValue("port"))
	}
	if h.previews == nil {
		return b, 0, sandpit.Errorf(sandpit.Unsupported, "this server has no previews")
	}
	return b, port, nil
}

// toPreview returns how a port is reached. Clients append paths to the URL.
//
// Unsupported: the server has no addresses of ports.
func toPreview(id sandpit.ID, u wire.PreviewURL) (portPreview, error) {
	url := cmp.Or(u.URL, u.PathURL)
	if url == "" {
		return portPreview{}, sandpit.Errorf(sandpit.Unsupported, "this server has no addresses of ports")
	}
	return portPreview{id, strings.TrimSuffix(url, "/"), u.Token}, nil
}

const (
	// toolboxTokenPort is the port whose token opens the toolbox API.
	toolboxTokenPort = 1
	// toolboxPort is the port at which clients before version 0.120 expect the toolbox API. A
	// sandbox of this server has none there: the API belongs to the server.
	toolboxPort = 2280
)

// getPreview returns the URL of a port and the token that opens it, whatever the state of the
// sandbox.
func (h *portHandlers) getPreview(c *call) (int, any, error) {
	b, port, err := h.findPort(c)
	if err != nil {
		return 0, nil, err
	}
	if port == toolboxPort {
		return h.getToolboxPreview(c, b.ID)
	}
	u, err := h.previews.TokenURL(c.r.Context(), b.ID, port)
	if err != nil {
		return 0, nil, err
	}
	p, err := toPreview(b.ID, u)
	return http.StatusOK, p, err
}

// getToolboxPreview returns the URL of the toolbox API of a sandbox, and the token that opens it.
func (h *portHandlers) getToolboxPreview(c *call, id sandpit.ID) (int, any, error) {
	u, err := h.previews.TokenURL(c.r.Context(), id, toolboxTokenPort)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, portPreview{id, externalURL(c.r) + PathToolbox + "/" + string(id), u.Token}, nil
}

// signPreview returns a URL that opens a port for a while.
func (h *portHandlers) signPreview(c *call) (int, any, error) {
	b, port, err := h.findPort(c)
	if err != nil {
		return 0, nil, err
	}
	life, err := parseNumber(c.r.URL.Query(), "expiresInSeconds", defaultSigned, maxSigned)
	if err != nil {
		return 0, nil, err
	}
	u, err := h.previews.SignedURL(c.r.Context(), b.ID, port, time.Duration(life)*time.Second)
	if err != nil {
		return 0, nil, err
	}
	p, err := toPreview(b.ID, u)
	return http.StatusOK, signedPreview{p, port}, err
}

// expirePreview revokes a signed URL.
func (h *portHandlers) expirePreview(c *call) (int, any, error) {
	b, port, err := h.findPort(c)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, nil, h.previews.ExpireSignedURL(c.r.Context(), b.ID, port, c.r.PathValue("token"))
}

// getSigningKey returns a handler that returns the secret with which clients sign URLs of files of
// the toolbox API.
func (h *portHandlers) getSigningKey(renew bool) handler {
	return func(c *call) (int, any, error) {
		b, err := findSandbox(c, h.manager)
		if err != nil {
			return 0, nil, err
		}
		if h.previews == nil {
			return 0, nil, sandpit.Errorf(sandpit.Unsupported, "this server has no tokens for sandboxes")
		}
		key, err := h.previews.SigningKey(c.r.Context(), b.ID, renew)
		return http.StatusOK, key, err
	}
}
