package daytona

import (
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// aboutHandlers serve what clients can know about the server and about their key.
type aboutHandlers struct {
	keys    *api.Keys
	version string
	since   time.Time // the start of the server
}

// getConfig describes the server. It needs no key. There is no login: clients use keys.
func (h *aboutHandlers) getConfig(c *call) (int, any, error) {
	url := externalURL(c.r)
	return http.StatusOK, map[string]any{
		"version": h.version, "oidc": map[string]string{"issuer": "", "clientId": "", "audience": ""},
		"linkedAccountsEnabled": false, "announcements": map[string]any{}, "proxyTemplateUrl": "", "proxyToolboxUrl": url + PathToolbox,
		"defaultSnapshot": defaultSnapshot, "dashboardUrl": url, "maxAutoArchiveInterval": maxArchive, "maintananceMode": false, "environment": "sandpit",
	}, nil
}

// getHealth reports that the server serves requests. It needs no key.
func (h *aboutHandlers) getHealth(*call) (int, any, error) {
	return http.StatusOK, map[string]any{"status": "ok"}, nil
}

// listRegions lists the only region.
func (h *aboutHandlers) listRegions(c *call) (int, any, error) {
	return http.StatusOK, []map[string]any{{
		"id": region, "name": region, "organizationId": nil, "regionType": "shared", "createdAt": h.since, "updatedAt": h.since,
		"proxyUrl": externalURL(c.r) + PathToolbox,
	}}, nil
}

// permissions are the permissions of every key.
var permissions = []string{
	"write:snapshots", "delete:snapshots", "write:sandboxes", "delete:sandboxes", "read:volumes", "write:volumes", "delete:volumes",
}

// getCurrentKey describes the key of the request.
func (h *aboutHandlers) getCurrentKey(c *call) (int, any, error) {
	if c.client.KeyID == "" {
		return 0, nil, sandpit.Errorf(sandpit.NotFound, "this request has no API key")
	}
	k, err := h.keys.Get(c.r.Context(), c.client.KeyID)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, describeKey(k), nil
}

func describeKey(k store.Key) map[string]any {
	out := map[string]any{
		"name": k.Name, "value": "********", "createdAt": k.CreatedAt.UTC(), "permissions": permissions,
		"lastUsedAt": nil, "expiresAt": nil, "userId": k.Owner,
	}
	if !k.LastUsedAt.IsZero() {
		out["lastUsedAt"] = k.LastUsedAt.UTC()
	}
	if !k.ExpiresAt.IsZero() {
		out["expiresAt"] = k.ExpiresAt.UTC()
	}
	return out
}
