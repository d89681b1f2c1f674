package daytona

import (
	"net/http"
	"time"
)

// aboutHandlers serve what clients can know about the server.
type aboutHandlers struct {
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
