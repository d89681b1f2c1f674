package api

import (
	"encoding/json"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// CreateRequest is a request for a sandbox. The zero value of a field means its default. In JSON,
// durations are numbers of seconds.
type CreateRequest struct {
	// Spec describes the sandbox. Default: the server's image and limits.
	Spec sandpit.Spec `json:"spec,omitzero"`
	// Provider is the name of the provider, or several in the order of preference, separated by
	// commas. Default: the server's.
	Provider string `json:"provider,omitempty"`
	// Providers are the same as a list: if one cannot create the sandbox, the next one does.
	Providers []string `json:"providers,omitempty"`
	// Timeout is the time until OnTimeout happens; below zero means never. Default: the server's.
	Timeout time.Duration `json:"-"`
	// OnTimeout is the action at the deadline. Default: sandpit.ActionKill.
	OnTimeout sandpit.Action `json:"on_timeout,omitempty"`
	// Policy says what happens when the sandbox is idle or lost. Default: an idle one is suspended,
	// and its next use resumes it.
	Policy sandpit.Policy `json:"policy,omitzero"`
	// Offline gives the sandbox no network, whatever the server's default is.
	Offline bool `json:"offline,omitempty"`
	// NetworkSecrets are the values that headers of the spec's network refer to. The server keeps
	// them in memory and never returns them.
	NetworkSecrets map[string]string `json:"network_secrets,omitempty"`
	// Secrets are environment variables of the sandbox's programs that no response contains, and no
	// snapshot or fork. The server keeps them until the sandbox is deleted.
	Secrets map[string]string `json:"secrets,omitempty"`
	// AllowPaths are absolute paths of the server's machine that mounts may show although they are
	// refused otherwise: /, /etc, home directories, credentials, sockets and the server's own files.
	// Only administrators may name any. Default: none.
	AllowPaths []string `json:"allow_paths,omitempty"`
	// Repository is cloned into the sandbox, with its own git and network, before it counts as
	// running. If that fails, the sandbox is deleted. Default: none.
	Repository *Repository `json:"repository,omitempty"`
	// CreateTimeout bounds the creation, cloning included, once the image is available and the
	// request's turn has come. Default: the server's.
	CreateTimeout time.Duration `json:"-"`
}

// createFields are the fields of a CreateRequest without its methods.
type createFields CreateRequest

// createJSON is a CreateRequest in JSON.
type createJSON struct {
	createFields

	Timeout       float64 `json:"timeout_seconds,omitempty"`
	CreateTimeout float64 `json:"create_timeout_seconds,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (r CreateRequest) MarshalJSON() ([]byte, error) {
	return json.Marshal(createJSON{createFields(r), r.Timeout.Seconds(), r.CreateTimeout.Seconds()})
}

// maxSeconds bounds durations in JSON: 100 years.
const maxSeconds = 100 * 365 * 24 * 3600

// UnmarshalJSON implements json.Unmarshaler. Invalid: a duration of more than 100 years, or
// both Provider and Providers.
func (r *CreateRequest) UnmarshalJSON(text []byte) error {
	var in createJSON
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	*r = CreateRequest(in.createFields)
	if r.Provider != "" && len(r.Providers) > 0 {
		return sandpit.Errorf(sandpit.Invalid, "provider and providers exclude each other")
	}
	for _, d := range []struct {
		name string
		to   *time.Duration
		from float64
	}{
		{"timeout_seconds", &r.Timeout, in.Timeout},
		{"create_timeout_seconds", &r.CreateTimeout, in.CreateTimeout},
	} {
		if d.from > maxSeconds || d.from < -maxSeconds {
			return sandpit.Errorf(sandpit.Invalid, "%s: %g seconds are too many", d.name, d.from)
		}
		*d.to = time.Duration(d.from * float64(time.Second))
	}
	return nil
}

// Repository is a repository that the sandbox clones before it counts as running, with its
// own git and network.
type Repository struct {
	URL      string `json:"url" minLength:"1" doc:"A URL for https, http, ssh or git, or a path inside the sandbox. A user and password in it are not stored."`
	Ref      string `json:"ref,omitempty" doc:"A branch, a tag, or the full hash of a commit. Default: the default branch of the remote."`
	Dir      string `json:"dir,omitempty" doc:"The target directory, relative to the working directory. Default: the name of the repository."`
	Depth    int    `json:"depth,omitempty" minimum:"0" doc:"Number of commits of history. Default: all."`
	Username string `json:"username,omitempty" doc:"User name for http and https. Default: one that suits tokens."`
	Password string `json:"password,omitempty" writeOnly:"true" doc:"A password or token for http and https. It is used for the clone and not stored."`
}
