package api

import "github.com/sandpit-dev/sandpit"

// Network is the network policy of a sandbox and its counters.
type Network struct {
	Policy sandpit.NetworkPolicy `json:"policy" doc:"What the sandbox may reach."`
	Stats  sandpit.NetworkStats  `json:"stats" doc:"Counters of the network. Zero for a sandbox that is offline."`
}

// SetNetwork is a request to replace the network policy of a sandbox.
type SetNetwork struct {
	Allow   []string                `json:"allow,omitempty" nullable:"false" doc:"The only destinations that the sandbox may reach. Default: everything that is not denied or private."`
	Deny    []string                `json:"deny,omitempty" nullable:"false" doc:"Destinations that the sandbox may not reach, even if allow includes them."`
	Headers []sandpit.NetworkHeader `json:"headers,omitempty" nullable:"false" doc:"Headers that are set in HTTPS requests outside of the sandbox."`
	Limits  sandpit.NetworkLimits   `json:"limits,omitzero" doc:"Limits of the traffic."`
	Secrets map[string]string       `json:"secrets,omitempty" writeOnly:"true" doc:"Values that headers refer to, added to the known ones; an empty value removes one. The server keeps them in memory and never returns them."`
}
