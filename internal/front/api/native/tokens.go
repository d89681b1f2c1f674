package native

import (
	"context"
	"net/http"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// Tokens are the tokens that open sandboxes without an API key. All methods may be called
// concurrently.
type Tokens interface {
	// List returns the tokens that work.
	List(ctx context.Context, f store.TokenFilter) ([]store.Token, error)
	// Get returns one token. NotFound.
	Get(ctx context.Context, id string) (store.Token, error)
	// Revoke ends a token and what it has opened. NotFound.
	Revoke(ctx context.Context, id string) error
	// RevokeSandbox ends all tokens of a sandbox, and what they have opened. NotFound.
	RevokeSandbox(ctx context.Context, id sandpit.ID) error
}

const pathTokens = wire.Prefix + "/tokens"

type tokensIn struct {
	Owner   string     `query:"owner" maxLength:"200" doc:"The owner of the sandboxes; only administrators may name another owner. Default: the client's own; for administrators, all owners."`
	Sandbox sandpit.ID `query:"sandbox" maxLength:"64" doc:"Tokens of this sandbox."`
	Cursor  string     `query:"cursor" maxLength:"200" doc:"The cursor that the previous page returned."`
	Limit   int        `query:"limit" minimum:"1" maximum:"1000" default:"1000" doc:"The maximum number of tokens to return."`
}

type tokensOut struct {
	Body wire.Page[wire.Token]
}

type tokenIn struct {
	ID string `path:"id" maxLength:"200" doc:"The token's ID, which is not its secret."`
}

// tokenHandlers serve the tokens of sandboxes.
type tokenHandlers struct {
	manager *manager.Manager
	tokens  Tokens // nil: the server has none
	access  access
}

// addOperations adds the operations on tokens.
func (h *tokenHandlers) addOperations(r *registrar) {
	op := newOperation(http.MethodGet, pathTokens, "listTokens", "List the tokens that open sandboxes without an API key")
	op.Description = "Lists the valid tokens without their secrets."
	addOperation(r, op, h.listTokens)
	op = newOperation(http.MethodDelete, pathTokens+"/{id}", "revokeToken", "Revoke a token")
	op.Description = "The token and everything signed with it stop working at once. Everything that the token has opened is closed."
	op.DefaultStatus = http.StatusNoContent
	addOperation(r, op, h.revokeToken)
	op = newOperation(http.MethodPost, pathSandbox+"/tokens/revoke", "revokeTokens", "Revoke all tokens of a sandbox")
	op.Description = "Tokens, signed URLs, preview URLs, tickets and one-time tokens for SSH stop working at once. Everything that they have opened is closed. " +
		"Public ports stay public."
	op.DefaultStatus = http.StatusNoContent
	addOperation(r, op, func(ctx context.Context, in *SandboxPath) (*struct{}, error) { return nil, h.revokeTokens(ctx, in.ID) })
}

func (h *tokenHandlers) listTokens(ctx context.Context, in *tokensIn) (*tokensOut, error) {
	p, err := api.PrincipalOf(ctx)
	if err != nil {
		return nil, err
	}
	f := store.TokenFilter{Owner: in.Owner, Sandbox: in.Sandbox, After: in.Cursor, Limit: in.Limit + 1}
	if !p.Admin {
		if in.Owner != "" && in.Owner != p.Owner {
			return nil, h.access.requireAdmin(ctx, "list tokens of another owner")
		}
		f.Owner = p.Owner
	}
	if h.tokens == nil {
		return nil, errNoTokens
	}
	list, err := h.tokens.List(ctx, f)
	if err != nil {
		return nil, err
	}
	page := toPage(list, in.Limit, func(t store.Token) string { return t.ID })
	out := wire.Page[wire.Token]{Items: make([]wire.Token, 0, len(page.Items)), Next: page.Next}
	for _, t := range page.Items {
		out.Items = append(out.Items, toToken(t, p))
	}
	return &tokensOut{out}, nil
}

// errNoTokens is the error of a server without a preview proxy.
var errNoTokens = sandpit.Errorf(sandpit.Unsupported, "this server has no tokens")

// toToken converts a token for a client. Only administrators see which administrator
// requested it.
func toToken(t store.Token, to api.Principal) wire.Token {
	out := wire.Token{
		ID: t.ID, Kind: string(t.Kind), Sandbox: t.Sandbox, Port: t.Port, Owner: t.Owner, CreatedBy: t.Creator, Key: t.Key,
		Note: t.Note, CreatedAt: t.CreatedAt, ExpiresAt: t.ExpiresAt, LastUsedAt: t.LastUsedAt,
	}
	if !to.Owns(t.Creator) {
		out.CreatedBy, out.Key = "", ""
	}
	return out
}

func (h *tokenHandlers) revokeToken(ctx context.Context, in *tokenIn) (*struct{}, error) {
	p, err := api.PrincipalOf(ctx)
	if err != nil {
		return nil, err
	}
	if h.tokens == nil {
		return nil, errNoTokens
	}
	found, err := h.tokens.Get(ctx, in.ID)
	if err == nil && !p.Owns(found.Owner) {
		err = sandpit.Errorf(sandpit.NotFound, "token %.100q not found", in.ID)
	}
	if err == nil {
		err = h.tokens.Revoke(ctx, in.ID)
	}
	report := manager.Report{Actor: p.Owner, Action: "revoke a token", Args: map[string]string{"token": in.ID}, Err: err}
	if err == nil {
		report.Sandbox, report.Args["kind"] = found.Sandbox, string(found.Kind)
	}
	h.access.report(report)
	return nil, err
}

func (h *tokenHandlers) revokeTokens(ctx context.Context, id sandpit.ID) error {
	found, err := api.Find(ctx, h.manager, id)
	if err != nil {
		return err
	}
	if h.tokens == nil {
		return errNoTokens
	}
	p, err := api.PrincipalOf(ctx)
	if err != nil {
		return err
	}
	err = h.tokens.RevokeSandbox(ctx, found.ID)
	h.access.report(manager.Report{Actor: p.Owner, Action: "revoke all tokens", Sandbox: found.ID, Err: err})
	return err
}
