// Shows the calls of /openapi.json; the validator would send them to another site.
SwaggerUIBundle({ url: "/openapi.json", dom_id: "#documentation", deepLinking: true, validatorUrl: null });
