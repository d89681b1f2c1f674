package wire

import "github.com/sandpit-dev/sandpit/api"

// The documents that clients read, and the request for a sandbox, are defined in package api,
// which is public.
//
//nolint:revive // see package api
type (
	Builtin       = api.Builtin
	CreateRequest = api.CreateRequest
	Event         = api.Event
	Image         = api.Image
	Key           = api.Key
	MadeKey       = api.MadeKey
	Message       = api.Message
	Network       = api.Network
	Pool          = api.Pool
	PrePull       = api.PrePull
	PreviewTicket = api.PreviewTicket
	PreviewURL    = api.PreviewURL
	Provider      = api.Provider
	Pull          = api.Pull
	Repository    = api.Repository
	RunResult     = api.RunResult
	SSHKey        = api.SSHKey
	SSHServer     = api.SSHServer
	SSHToken      = api.SSHToken
	Session       = api.Session
	SessionResult = api.SessionResult
	SetNetwork    = api.SetNetwork
	SharedPort    = api.SharedPort
	Stats         = api.Stats
	Token         = api.Token
	Verdict       = api.Verdict
	Version       = api.Version
)

// The states of a PrePull.
const (
	PrePullWaiting  = api.PrePullWaiting
	PrePullFetching = api.PrePullFetching
	PrePullReady    = api.PrePullReady
	PrePullFailed   = api.PrePullFailed
)
