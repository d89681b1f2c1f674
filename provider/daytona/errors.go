package daytona

import (
	"net/http"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/cloudapi"
)

// refineError gives an error of the API the code that its text means: the API has one status for
// invalid requests, used-up quotas and wrong states.
func refineError(err error) error {
	status := cloudapi.StatusOf(err)
	if status == 0 || sandpit.CodeOf(err) == sandpit.Exhausted {
		return err
	}
	text := strings.ToLower(err.Error())
	switch {
	case status == http.StatusBadRequest && isQuota(text):
		return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "a quota of the account at Daytona is used up: %w", err), quotaHint)
	case status == http.StatusBadRequest && isImage(text):
		return sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "%w", err), imageHint)
	case status == http.StatusBadRequest && isState(text):
		return sandpit.Errorf(sandpit.Conflict, "%w", err)
	case status == http.StatusForbidden && strings.Contains(text, "suspended"):
		return sandpit.WithHint(sandpit.Errorf(sandpit.PermissionDenied, "%w", err), "see https://app.daytona.io/dashboard for the reason")
	}
	return err
}

const (
	quotaHint = "delete or archive sandboxes, ask for less CPU, memory or disk, or raise the account's limits"
	imageHint = "check the name and tag of the image, and that Daytona can read its registry; daytona.sandbox_image_name is the default image"
)

func containsAny(text string, parts ...string) bool {
	for _, part := range parts {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}

// isQuota reports whether a text, in lower case, is about a limit of the account.
func isQuota(text string) bool {
	return containsAny(text, "limit exceeded", "exceeds maximum allowed", "quota", "resource limit reached", "maximum allowed:")
}

// isState reports whether a text, in lower case, is about the state of a sandbox.
func isState(text string) bool {
	return containsAny(text, "not in valid state", "not in a stoppable state", "is not stopped", "is not started", "state change in progress",
		"in an errored state", "is the sandbox started", "cannot be archived", "must be in error state")
}

// isImage reports whether a text, in lower case, is about an image that cannot be fetched.
func isImage(text string) bool {
	return containsAny(text, "manifest unknown", "pull access denied", "image not found", "no such image", "failed to pull", "repository does not exist",
		"name unknown", "error pulling", "failed to resolve reference")
}

// failureError returns the error for a sandbox that is in a state from which it does not start.
func (p *Provider) failureError(id sandpit.ID, b box) error {
	reason := cleanText(b.ErrorReason)
	if reason == "" {
		reason = "Daytona gives no reason"
	}
	lower := strings.ToLower(reason)
	switch {
	case isImage(lower):
		return sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "sandbox %s: its image cannot be fetched: %s", id, reason), imageHint)
	case isQuota(lower):
		return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "sandbox %s: a limit of the account is reached: %s", id, reason), quotaHint)
	case b.State == stateBuildFailed:
		return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "sandbox %s: the build of its image failed: %s", id, reason), imageHint)
	}
	return sandpit.WithHint(sandpit.Errorf(sandpit.Conflict, "sandbox %s is in the state error at Daytona: %s", id, reason), "delete it and create another one")
}
