package api

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
