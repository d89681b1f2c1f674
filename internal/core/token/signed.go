package token

import (
	"maps"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// guestSecrets are the secrets of all tokens of guests. Clients sign URLs with them, and
// such a URL names neither the token nor, with some clients, the sandbox.
type guestSecrets struct {
	mu  sync.RWMutex
	all map[sandpit.ID]map[string]string // secrets by ID
}

func (g *guestSecrets) addToken(one store.Token, secret string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all == nil {
		g.all = make(map[sandpit.ID]map[string]string)
	}
	if g.all[one.Sandbox] == nil {
		g.all[one.Sandbox] = make(map[string]string, 1)
	}
	g.all[one.Sandbox][one.ID] = secret
}

func (g *guestSecrets) removeSandbox(id sandpit.ID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.all, id)
}

// removeTokens forgets the tokens for which is holds.
func (g *guestSecrets) removeTokens(is func(id string) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for sandbox, secrets := range g.all {
		maps.DeleteFunc(secrets, func(id, _ string) bool { return is(id) })
		if len(secrets) == 0 {
			delete(g.all, sandbox)
		}
	}
}

// tokenIDs returns the IDs of all tokens.
func (g *guestSecrets) tokenIDs() map[string]bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	all := make(map[string]bool, len(g.all))
	for _, secrets := range g.all {
		for id := range secrets {
			all[id] = true
		}
	}
	return all
}

// findToken returns the token of a sandbox whose secret matches, or "".
func (g *guestSecrets) findToken(sandbox sandpit.ID, matches func(secret string) bool) string {
	g.mu.RLock()
	defer g.mu.RUnlock()
	for id, secret := range g.all[sandbox] {
		if matches(secret) {
			return id
		}
	}
	return ""
}

// findSandbox returns the sandbox with a token whose secret matches, or "".
func (g *guestSecrets) findSandbox(matches func(secret string) bool) sandpit.ID {
	g.mu.RLock()
	defer g.mu.RUnlock()
	for sandbox, secrets := range g.all {
		for _, secret := range secrets {
			if matches(secret) {
				return sandbox
			}
		}
	}
	return ""
}
