package sandpit

import (
	"crypto/rand"
	"encoding/base32"
	"regexp"
	"strings"
	"time"
)

// TemplateID names a template for its whole life.
type TemplateID string

// BuildID names one build of a template for its whole life.
type BuildID string

var (
	templateIDPattern   = regexp.MustCompile(`^tmpl[a-z2-7]{16}$`)
	buildIDPattern      = regexp.MustCompile(`^bld[a-z2-7]{16}$`)
	templateNamePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$`)
)

// NewTemplateID returns a TemplateID with 80 bits of randomness.
func NewTemplateID() TemplateID { return TemplateID("tmpl" + randomName()) }

// NewBuildID returns a BuildID with 80 bits of randomness.
func NewBuildID() BuildID { return BuildID("bld" + randomName()) }

func randomName() string {
	raw := make([]byte, 10)
	_, _ = rand.Read(raw) // never fails: crypto/rand ends the program instead
	return strings.ToLower(base32.StdEncoding.EncodeToString(raw))
}

// Validate returns an Invalid error unless id has the form NewTemplateID gives it.
func (id TemplateID) Validate() error {
	if !templateIDPattern.MatchString(string(id)) {
		return Errorf(Invalid, "template id %.40q: want \"tmpl\" and 16 lower-case letters and digits", string(id))
	}
	return nil
}

// Validate returns an Invalid error unless id has the form NewBuildID gives it. Use it on
// every BuildID that comes from outside: images are named by them.
func (id BuildID) Validate() error {
	if !buildIDPattern.MatchString(string(id)) {
		return Errorf(Invalid, "build id %.40q: want \"bld\" and 16 lower-case letters and digits", string(id))
	}
	return nil
}

// CheckTemplateName returns an Invalid error unless name can be what an owner calls a
// template, or a tag of one. What looks like an ID is no name.
func CheckTemplateName(name string) error {
	if !templateNamePattern.MatchString(name) || templateIDPattern.MatchString(name) || buildIDPattern.MatchString(name) {
		return Errorf(Invalid, "template %.100q: want lower-case letters, digits, and inside also - _ and dots, at most 63", name)
	}
	return nil
}

// DefaultTag is the tag that a template has when no other one is named.
const DefaultTag = "default"

// TemplateRef is what a template, or a build of one, is called.
type TemplateRef struct {
	// Owner owns the template. Default: no owner is named.
	Owner string
	// Name is the template's name or ID, or the ID of a build.
	Name string
	// Tag is a tag of the template, or the ID of a build. Default: none is named.
	Tag string
}

// ParseTemplateRef reads [OWNER/]NAME[:TAG]. What it takes need not exist.
func ParseTemplateRef(text string) TemplateRef {
	var r TemplateRef
	if i := strings.LastIndexByte(text, '/'); i > 0 {
		r.Owner, text = text[:i], text[i+1:]
	}
	r.Name, r.Tag, _ = strings.Cut(text, ":")
	return r
}

// String is what ParseTemplateRef reads.
func (r TemplateRef) String() string {
	text := r.Name
	if r.Owner != "" {
		text = r.Owner + "/" + text
	}
	if r.Tag != "" {
		text += ":" + r.Tag
	}
	return text
}

// IsID reports whether the name is the ID of a template or of a build.
func (r TemplateRef) IsID() bool {
	return TemplateID(r.Name).Validate() == nil || BuildID(r.Name).Validate() == nil
}

// FullName returns OWNER/NAME, which means the template to every owner.
func (t Template) FullName() string { return TemplateRef{Owner: t.Owner, Name: t.Name}.String() }

// TemplatePrefix begins what a Spec has for its Image when the sandbox shall be one of a
// template: "template:" and a TemplateRef.
const TemplatePrefix = "template:"

// Template returns which template an image is, if it is one.
func (i Image) Template() (ref string, ok bool) {
	return strings.CutPrefix(string(i), TemplatePrefix)
}

// Template is an image that was built here, maybe with programs that run in it, and that
// sandboxes are made of.
type Template struct {
	ID TemplateID `json:"id"`
	// Name is what its owner calls it, and Owner whose it is.
	Name  string `json:"name"`
	Owner string `json:"owner,omitempty"`
	// Public lets sandboxes of every owner be made of it, as OWNER/NAME.
	Public bool `json:"public"`
	// Shared says that an administrator has published it: the name alone means it to every
	// owner that has no template of that name.
	Shared bool `json:"shared,omitempty"`
	// Tags are builds that are ready, by what they are called.
	Tags      map[string]BuildID `json:"tags"`
	CreatedAt time.Time          `json:"created_at"`
	// UpdatedAt is when a build was last begun or got a tag.
	UpdatedAt time.Time `json:"updated_at"`
	// Spawned is how many sandboxes were made of it.
	Spawned int64 `json:"spawned"`
}

// BuildStatus is where a build is in its life.
type BuildStatus string

// The statuses. The last two are for ever.
const (
	BuildWaiting  BuildStatus = "waiting"
	BuildBuilding BuildStatus = "building"
	BuildReady    BuildStatus = "ready"
	BuildFailed   BuildStatus = "failed"
)

// Valid reports whether s is one of the statuses.
func (s BuildStatus) Valid() bool {
	return s == BuildWaiting || s == BuildBuilding || s.Ended()
}

// Ended reports whether nothing comes after s.
func (s BuildStatus) Ended() bool { return s == BuildReady || s == BuildFailed }

// BuildReason is why a build has failed.
type BuildReason struct {
	// Message is for people. Default: it has not failed.
	Message string `json:"message,omitempty"`
	// Step is what was at fault, as people write it. Default: none of the steps.
	Step string `json:"step,omitempty"`
}

// TemplateBuild is one build of a template.
type TemplateBuild struct {
	ID       BuildID     `json:"id"`
	Template TemplateID  `json:"template"`
	Status   BuildStatus `json:"status"`
	// Tags are what it is called when it is ready.
	Tags   []string    `json:"tags,omitempty"`
	Reason BuildReason `json:"reason,omitzero"`
	// Recipe is what it was made by. Default: nobody has begun it.
	Recipe Recipe `json:"recipe,omitzero"`
	// Image is what its sandboxes have for their image, and Snapshot what they begin as if
	// programs run in it already.
	Image    Image      `json:"image,omitempty"`
	Snapshot SnapshotID `json:"snapshot,omitempty"`
	// Size is how many bytes it takes on disk.
	Size int64 `json:"size"`
	// Resources are the limits of its sandboxes, where they ask for no others.
	Resources  Resources `json:"resources,omitzero"`
	CreatedAt  time.Time `json:"created_at"`
	StartedAt  time.Time `json:"started_at,omitzero"`
	FinishedAt time.Time `json:"finished_at,omitzero"`
}

// BuildLog is one line of what a build tells.
type BuildLog struct {
	// Seq is 1 and up, without gaps.
	Seq int64     `json:"seq"`
	At  time.Time `json:"at"`
	// Step is the step's number, 0 for none.
	Step int `json:"step,omitempty"`
	// Error says that the line tells why the build has failed.
	Error bool   `json:"error,omitempty"`
	Text  string `json:"text"`
}

// TemplateOrigin is which template a sandbox was made of.
type TemplateOrigin struct {
	Template TemplateID `json:"template"`
	Build    BuildID    `json:"build"`
	// Name is what the template was called, with the tag if one was asked for.
	Name string `json:"name"`
}
