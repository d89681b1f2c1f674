package config

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Daytona is the [daytona] section: the account of provider daytona, and what its sandboxes are like.
// The names of the first six settings, and their defaults except for the password's, are those of
// OpenManus.
type Daytona struct {
	// Key is the API key.
	Key Secret
	// ServerURL is the URL of the API.
	ServerURL string
	// Target is the region of sandboxes. "" means the account's.
	Target string
	// Image is the image of a sandbox whose request names none.
	Image sandpit.Image
	// Entrypoint is the command that starts the services of an image. "" means none.
	Entrypoint string
	// VNCPassword is the password of desktops. "" means a random one for each sandbox.
	VNCPassword Secret
	// CPU is processors, Memory and Disk are bytes, of a sandbox whose request has no limits.
	CPU          float64
	Memory, Disk int64
	// Public opens ports without a token.
	Public bool
	// AutoStop is the time without use until Daytona stops a sandbox, AutoArchive and AutoDelete
	// the time stopped until it archives and deletes it.
	AutoStop, AutoArchive, AutoDelete time.Duration
	// CreateTimeout bounds the creation of a sandbox, its image's download included.
	CreateTimeout time.Duration
	// Toolbox has sandboxes be used through Daytona's toolbox API instead of a guest.
	Toolbox bool
}

// The keys of the [daytona] section.
const (
	KeyDaytonaKey           Key = "daytona.daytona_api_key"
	KeyDaytonaServerURL     Key = "daytona.daytona_server_url"
	KeyDaytonaTarget        Key = "daytona.daytona_target"
	KeyDaytonaImage         Key = "daytona.sandbox_image_name"
	KeyDaytonaEntrypoint    Key = "daytona.sandbox_entrypoint"
	KeyDaytonaVNCPassword   Key = "daytona.VNC_password"
	KeyDaytonaCPU           Key = "daytona.cpu"
	KeyDaytonaMemory        Key = "daytona.memory"
	KeyDaytonaDisk          Key = "daytona.disk"
	KeyDaytonaPublic        Key = "daytona.public"
	KeyDaytonaAutoStop      Key = "daytona.auto_stop"
	KeyDaytonaAutoArchive   Key = "daytona.auto_archive"
	KeyDaytonaAutoDelete    Key = "daytona.auto_delete"
	KeyDaytonaCreateTimeout Key = "daytona.create_timeout"
	KeyDaytonaToolbox       Key = "daytona.toolbox"
)

func defaultDaytona() Daytona {
	return Daytona{
		ServerURL: "https://app.daytona.io/api", Target: "us", Image: "whitezxj/sandbox:0.1.0",
		Entrypoint: "/usr/bin/supervisord -n -c /etc/supervisor/conf.d/supervisord.conf",
		CPU:        2, Memory: 4 << 30, Disk: 5 << 30,
		AutoStop: 15 * time.Minute, AutoArchive: 24 * time.Hour, AutoDelete: 30 * 24 * time.Hour, CreateTimeout: 10 * time.Minute,
	}
}

func daytonaSettings() []setting {
	return []setting{
		defineSetting(KeyDaytonaKey, func(c *Config) *Secret { return &c.Daytona.Key }, setAccountKey,
			"The API key of provider daytona. Set it as a variable rather than in a file.").orVariable("DAYTONA_API_KEY", nil),
		defineSetting(KeyDaytonaServerURL, func(c *Config) *string { return &c.Daytona.ServerURL }, setAPIURL,
			"The URL of Daytona's API, or of another server with this API.").orVariable("DAYTONA_API_URL", nil).orVariable("DAYTONA_SERVER_URL", nil),
		defineSetting(KeyDaytonaTarget, func(c *Config) *string { return &c.Daytona.Target }, setTarget,
			"The region of sandboxes. Empty: the account's own.").orVariable("DAYTONA_TARGET", nil),
		defineSetting(KeyDaytonaImage, func(c *Config) *sandpit.Image { return &c.Daytona.Image }, setImage,
			"The image of a sandbox if its request names none. `daytona-snapshot:NAME` is a snapshot of the account."),
		defineSetting(KeyDaytonaEntrypoint, func(c *Config) *string { return &c.Daytona.Entrypoint }, setCommandLine,
			"The command that starts the services of an image. It runs in sandboxes whose image has its program. Empty: none."),
		defineSetting(KeyDaytonaVNCPassword, func(c *Config) *Secret { return &c.Daytona.VNCPassword }, setPassword,
			"The password of desktops, as the variable `VNC_PASSWORD` of each sandbox.").describedBy("a random one for each sandbox"),
		defineSetting(KeyDaytonaCPU, func(c *Config) *float64 { return &c.Daytona.CPU }, setCPU,
			"Processors of a sandbox whose request has no limit. Daytona limits whole ones."),
		defineSetting(KeyDaytonaMemory, func(c *Config) *int64 { return &c.Daytona.Memory }, sizeOf(1<<30, "1g", `"4g"`),
			"Memory of a sandbox whose request has no limit, in whole GiB. At least 1g."),
		defineSetting(KeyDaytonaDisk, func(c *Config) *int64 { return &c.Daytona.Disk }, sizeOf(1<<30, "1g", `"5g"`),
			"Disk of a sandbox whose request has no limit, in whole GiB. At least 1g."),
		defineSetting(KeyDaytonaPublic, func(c *Config) *bool { return &c.Daytona.Public }, setBool,
			"Whether Daytona's URLs of ports work without a token."),
		defineSetting(KeyDaytonaAutoStop, func(c *Config) *time.Duration { return &c.Daytona.AutoStop }, timeOf("900"),
			"The time without use after which Daytona stops a sandbox, at the latest. A server renews it while the sandbox runs."),
		defineSetting(KeyDaytonaAutoArchive, func(c *Config) *time.Duration { return &c.Daytona.AutoArchive }, timeOf("86400"),
			"The time after which Daytona archives a stopped sandbox."),
		defineSetting(KeyDaytonaAutoDelete, func(c *Config) *time.Duration { return &c.Daytona.AutoDelete }, timeOf("2592000"),
			"The time after which Daytona deletes a stopped or archived sandbox."),
		defineSetting(KeyDaytonaCreateTimeout, func(c *Config) *time.Duration { return &c.Daytona.CreateTimeout }, timeOf("600"),
			"The time limit for the creation of a sandbox, including the download of its image."),
		defineSetting(KeyDaytonaToolbox, func(c *Config) *bool { return &c.Daytona.Toolbox }, setBool,
			"Whether sandboxes are used through Daytona's toolbox API only, without sandpit's guest. Some calls are then refused."),
	}
}

// knownPassword is the password of desktops that OpenManus sets if none is configured.
const knownPassword = "123456"

// noticeDaytona reports a password of desktops that everyone knows.
func (l *loader) noticeDaytona() {
	if l.cfg.Daytona.VNCPassword == knownPassword {
		l.addNotice("%s: %s = %s is the well-known default of OpenManus: set another one, or omit it for a random one",
			l.cfg.Sources[KeyDaytonaVNCPassword], KeyDaytonaVNCPassword, knownPassword)
	}
}

// otherName is another name of a setting in files, and how its values are read. ok is false for a value that makes no
// sense.
type otherName struct {
	key  Key
	read func(value any) (any, bool)
}

// otherNames are names that programs for OpenManus write in its section [daytona].
func otherNames() map[Key]otherName {
	return map[Key]otherName{
		"daytona.vnc_password":          {KeyDaytonaVNCPassword, func(value any) (any, bool) { return value, true }},
		"daytona.auto_stop_interval":    {KeyDaytonaAutoStop, fromMinutes},
		"daytona.auto_archive_interval": {KeyDaytonaAutoArchive, fromMinutes},
	}
}

// maxMinutes bounds an interval, in minutes: a century.
const maxMinutes = 100 * 365 * 24 * 60

// fromMinutes converts a number of minutes to seconds.
func fromMinutes(value any) (any, bool) {
	n, ok := value.(int64)
	return n * 60, ok && n > 0 && n <= maxMinutes
}

// setAccountKey reads the API key of a cloud. It never shows what is wrong with it.
func setAccountKey(field *Secret, v any) error {
	text, ok := textOf(v)
	if !ok || len(text) > maxKey || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return fmt.Errorf("is not an API key; use at most %d visible ASCII characters", maxKey)
	}
	*field = Secret(text)
	return nil
}

// setAPIURL reads the URL of an API. It never shows a user and password in it.
func setAPIURL(field *string, v any) error {
	const form = "is not the URL of an API; use for example https://app.daytona.io/api"
	text, ok := textOf(v)
	u, err := url.Parse(text)
	if !ok || err != nil || hasControl(text) || u.User != nil {
		return errors.New(form)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("%s %s", shortValue(v), form)
	}
	*field = strings.TrimRight(text, "/")
	return nil
}

func setTarget(field *string, v any) error {
	text, ok := textOf(v)
	if !ok || text != "" && !wordPattern().MatchString(text) {
		return fmt.Errorf("%s is not a region; use for example us", shortValue(v))
	}
	*field = text
	return nil
}

func setCommandLine(field *string, v any) error {
	text, ok := textOf(v)
	if !ok || hasControl(text) {
		return fmt.Errorf("%s is not a command on one line", shortValue(v))
	}
	*field = strings.TrimSpace(text)
	return nil
}

// setPassword never shows what is wrong.
func setPassword(field *Secret, v any) error {
	text, ok := textOf(v)
	if !ok || hasControl(text) || len(text) > maxKey {
		return errors.New("is not a password on one line")
	}
	*field = Secret(text)
	return nil
}
