package mcp

import (
	"net/http"
	"strconv"
	"sync"

	"github.com/sandpit-dev/sandpit/internal/core/memory"
)

// headerCall carries the number of a request to the calls in it: the protocol's library
// passes its headers on, and not its context. What a client sends in it is replaced.
const headerCall = "Sandpit-Call"

// callMemory has the accounts of requests. A call may outlive the request that it came by,
// whose client comes back for the answer; and an answer waits in the request until it is
// read. So an account is closed with the later of both.
type callMemory struct {
	mu       sync.Mutex
	last     uint64
	requests map[string]*sharedAccount
}

// sharedAccount is an account with several users.
type sharedAccount struct {
	*memory.Account

	users int
}

// openAccount puts the account of a request into its header. The caller calls done when it was
// answered.
func (m *callMemory) openAccount(h http.Header, account *memory.Account) (done func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.requests == nil {
		m.requests = make(map[string]*sharedAccount)
	}
	m.last++
	number := strconv.FormatUint(m.last, 10)
	h.Set(headerCall, number)
	m.requests[number] = &sharedAccount{account, 1}
	return func() { m.releaseAccount(number) }
}

// joinAccount returns the account of the request with a header, or one that is opened if its
// client has gone before the call began. The caller calls done when it needs it no more.
func (m *callMemory) joinAccount(h http.Header, open func() *memory.Account) (account *memory.Account, done func()) {
	number := h.Get(headerCall)
	m.mu.Lock()
	defer m.mu.Unlock()
	shared := m.requests[number]
	if shared == nil {
		account = open()
		return account, account.Close
	}
	shared.users++
	return shared.Account, sync.OnceFunc(func() { m.releaseAccount(number) })
}

func (m *callMemory) releaseAccount(number string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	shared := m.requests[number]
	if shared.users--; shared.users == 0 {
		shared.Close()
		delete(m.requests, number)
	}
}
