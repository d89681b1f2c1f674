package daytona

import (
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/sshkey"
)

// defaultSSH is how many minutes a token for SSH is good for.
const defaultSSH = 10

// sshHandlers serve tokens for SSH, which are the password of one connection.
type sshHandlers struct {
	manager   *manager.Manager
	describer *describer
	ssh       SSH
}

// sshAccess is a token for SSH.
type sshAccess struct {
	ID        string     `json:"id"`
	Sandbox   sandpit.ID `json:"sandboxId"`
	Token     string     `json:"token"`
	ExpiresAt time.Time  `json:"expiresAt"`
	CreatedAt time.Time  `json:"createdAt"`
	UpdatedAt time.Time  `json:"updatedAt"`
	Command   string     `json:"sshCommand"`
}

// createAccess creates a token. It expires after the time in the request, but at most after
// sshkey.MaxTTL; the response has the time.
func (h *sshHandlers) createAccess(c *call) (int, any, error) {
	b, err := findSandbox(c, h.manager)
	if err != nil {
		return 0, nil, err
	}
	minutes, err := parseNumber(c.r.URL.Query(), "expiresInMinutes", defaultSSH, maxInterval)
	if err != nil {
		return 0, nil, err
	}
	if h.ssh.Where == nil {
		return 0, nil, sandpit.Errorf(sandpit.Unsupported, "this server has no SSH")
	}
	where, err := h.ssh.Where()
	if err != nil {
		return 0, nil, err
	}
	ttl := min(time.Duration(minutes)*time.Minute, sshkey.MaxTTL)
	token, expires, err := h.ssh.Tokens.Issue(b.ID, sshkey.Holder{Owner: c.client.Owner, Key: c.client.KeyID}, ttl)
	h.manager.Events().Record(manager.Report{Actor: c.client.Owner, Action: "open ssh", Sandbox: b.ID, Err: err})
	if err != nil {
		return 0, nil, err
	}
	host := where.Host
	if host == "" { // it listens on all addresses
		if host, _, err = net.SplitHostPort(c.r.Host); err != nil {
			host = c.r.Host
		}
	}
	now := time.Now().UTC()
	return http.StatusOK, sshAccess{
		ID: string(b.ID), Sandbox: b.ID, Token: token, ExpiresAt: expires.UTC(), CreatedAt: now, UpdatedAt: now,
		Command: fmt.Sprintf("ssh -p %d %s@%s", where.Port, b.ID, host),
	}, nil
}

// deleteAccess revokes the token in the query, or all tokens of a sandbox.
func (h *sshHandlers) deleteAccess(c *call) (int, any, error) {
	b, err := findSandbox(c, h.manager)
	if err != nil {
		return 0, nil, err
	}
	if h.ssh.Tokens == nil {
		return 0, nil, sandpit.Errorf(sandpit.Unsupported, "this server has no SSH")
	}
	err = h.ssh.Tokens.Revoke(b.ID, c.r.URL.Query().Get("token"))
	h.manager.Events().Record(manager.Report{Actor: c.client.Owner, Action: "revoke ssh", Sandbox: b.ID, Err: err})
	if err != nil {
		return 0, nil, err
	}
	return h.describer.respond(c, b.ID)
}

// validateAccess reports whether a token opens a sandbox of the client.
func (h *sshHandlers) validateAccess(c *call) (int, any, error) {
	out := struct {
		Valid   bool       `json:"valid"`
		Sandbox sandpit.ID `json:"sandboxId"`
	}{}
	if h.ssh.Tokens == nil {
		return http.StatusOK, out, nil
	}
	id, found := h.ssh.Tokens.Find(c.r.URL.Query().Get("token"))
	if b, err := h.manager.Get(id); found && err == nil && c.client.Owns(b.Lease.Owner) {
		out.Valid, out.Sandbox = true, id
	}
	return http.StatusOK, out, nil
}
